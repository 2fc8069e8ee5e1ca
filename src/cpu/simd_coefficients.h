// Coefficients of the polynomials in simd_math-inl.h, lowest power first, for fp32 and fp64.
// Printed by tools/fit_functions.py; change them there.
#pragma once

namespace gdpa::cpu {

// exp(r) = 1 + r + r^2 P(r), |r| <= log(2) / 2; P is within 6.8e-08
inline constexpr float exponential_32[] = {5.0e-1F, 1.66665734e-1F, 4.16665501e-2F, 8.36377387e-3F, 1.39269266e-3F};

// exp(r) = 1 + r + r^2 P(r), |r| <= log(2) / 2; P is within 1.6e-18
inline constexpr double exponential_64[] = {5.0e-1,
                                            1.6666666666666671e-1,
                                            4.166666666666667e-2,
                                            8.3333333333255447e-3,
                                            1.3888888888883327e-3,
                                            1.9841269876864355e-4,
                                            2.4801587327007187e-5,
                                            2.755725283351691e-6,
                                            2.75572718102198e-7,
                                            2.5106274733573295e-8,
                                            2.0915442297780115e-9};

// log((1 + s) / (1 - s)) = 2 s + s z P(z), z = s^2, from sqrt(1/2) to sqrt(2); P is within 1.2e-09
inline constexpr float logarithm_32[] = {6.66666666e-1F, 4.00001239e-1F, 2.8550587e-1F, 2.3336811e-1F};

// log((1 + s) / (1 - s)) = 2 s + s z P(z), z = s^2, from sqrt(1/2) to sqrt(2); P is within 2.2e-18
inline constexpr double logarithm_64[] = {6.6666666666666666e-1, 4.0000000000000912e-1, 2.8571428570782208e-1,
                                          2.2222222396552981e-1, 1.8181795124476754e-1, 1.5386267672882225e-1,
                                          1.3268026140428739e-1, 1.3094416666525344e-1};

// sin(r) = r + r z P(z), z = r^2, |r| <= pi / 4; P is within 3.0e-11
inline constexpr float sine_32[] = {-1.66666667e-1F, 8.33333179e-3F, -1.98400389e-4F, 2.72437814e-6F};

// sin(r) = r + r z P(z), z = r^2, |r| <= pi / 4; P is within 1.3e-20
inline constexpr double sine_64[] = {-1.6666666666666667e-1, 8.3333333333333313e-3,  -1.9841269841264566e-4,
                                     2.7557319218954762e-6,  -2.5052106100255989e-8, 1.6058510875319195e-10,
                                     -7.5854864852359381e-13};

// cos(r) = 1 - z / 2 + z^2 P(z), z = r^2, |r| <= pi / 4; P is within 2.1e-09
inline constexpr float cosine_32[] = {4.16666645e-2F, -1.38882793e-3F, 2.45428711e-5F};

// cos(r) = 1 - z / 2 + z^2 P(z), z = r^2, |r| <= pi / 4; P is within 7.4e-22
inline constexpr double cosine_64[] = {4.1666666666666667e-2,  -1.3888888888888888e-3, 2.4801587301584369e-5,
                                       -2.7557319221189104e-7, 2.0876755717584404e-9,  -1.1470449354466773e-11,
                                       4.7451988072028758e-14};

// erf(x) = x + x P(x^2), |x| <= 1; P is within 1.2e-09
inline constexpr float erf_near_zero_32[] = {1.28379166e-1F, -3.76126267e-1F, 1.12835947e-1F, -2.6854212e-2F,
                                             5.18908742e-3F, -8.01686429e-4F, 7.87587506e-5F};

// erf(x) = x + x P(x^2), |x| <= 1; P is within 1.3e-19
inline constexpr double erf_near_zero_64[] = {1.2837916709551257e-1,  -3.7612638903183748e-1, 1.1283791670954879e-1,
                                              -2.6866170645076793e-2, 5.2239776248180145e-3,  -8.5483269808337899e-4,
                                              1.2055331111642711e-4,  -1.4925595266831182e-5, 1.6461000484121368e-6,
                                              -1.6350312701054695e-7, 1.4659775274047436e-8,  -1.1372848856791674e-9,
                                              5.9571761477489114e-11};

// log(erfc(x)) = P(t), x from 1 to 4, t from -1 to 1; P is within 8.3e-09
inline constexpr float erfc_logarithm_32[] = {-7.80681528F,   -8.02902112F,   -2.1237607F,    -3.66461312e-2F,
                                              1.09611725e-2F, -3.1953866e-3F, 8.81493173e-4F, -2.20847632e-4F,
                                              4.14055778e-5F, -2.91503768e-6F};

// log(erfc(x)) = P(t), x from 1 to 6, t from -1 to 1; P is within 2.1e-17
inline constexpr double erfc_logarithm_64[] = {
    -1.4112437402148174e+1, -1.8165248970912977e+1,  -6.0422065921389368,    -8.1650909717799245e-2,
    3.4128411079638966e-2,  -1.4384548330638939e-2,  5.9537044786857655e-3,  -2.3739972761078477e-3,
    8.9357655647921244e-4,  -3.078195950532894e-4,   9.0901103641757262e-5,  -1.8474346905170144e-5,
    -1.4783966569639068e-6, 4.5653913877192365e-6,   -3.4196471333147523e-6, 1.919146618676658e-6,
    -9.1779753326693184e-7, 3.8251506449279393e-7,   -1.286781347382139e-7,  2.7966374245484618e-8,
    -3.0414788597569983e-9, -9.6528252053603727e-10, 4.8610991029225574e-9,  -5.1951607385372206e-9,
    2.1901845906851097e-9,  -3.245901999030085e-10};

// Their sum is the constant; a product of any but the last with an integer of 13 (fp32) or 20 (fp64)
// bits is exact, also without a fused multiply-add.
inline constexpr float log_2_parts_32[] = {6.93359375e-1F, -2.12194442e-4F};
inline constexpr double log_2_parts_64[] = {6.9314718060195446e-1, -4.2009150726810846e-11};

// Their sum is the constant; a product of any but the last with an integer of 13 (fp32) or 20 (fp64)
// bits is exact, also without a fused multiply-add.
inline constexpr float half_pi_parts_32[] = {1.5703125F, 4.83751297e-4F, 7.54953362e-8F, 2.56334407e-12F};
inline constexpr double half_pi_parts_64[] = {1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21,
                                              8.4784276603688996e-32};

}  // namespace gdpa::cpu
