// gdpa: Generalized Dot-Product Attention, forward and backward, with any elementwise function instead of softmax.
#pragma once

#include "gdpa/activation.h"
#include "gdpa/attention.h"
#include "gdpa/compile.h"
#include "gdpa/error.h"
#include "gdpa/mask.h"
#include "gdpa/mask_expression.h"
#include "gdpa/norm.h"
#include "gdpa/plan.h"
#include "gdpa/prepared_mask.h"
#include "gdpa/score.h"
#include "gdpa/tensor.h"
#include "gdpa/version.h"
