// The gradients of the tensors that the function reads. dP is the gradient of P, so the gradient of an input of the
// function at one score is dP times the derivative of f with respect to this input. The gradient of an element of a
// tensor is the sum of these over all scores that read the element. The pass computes S and dP again. The units of a
// group add in their order to sums in double of the group alone, so the result does not depend on the threads.
#include <algorithm>
#include <array>
#include <span>

#include "cpu/call.h"
#include "cpu/threads.h"
#include "cpu/workspace.h"

namespace gdpa::cpu {
namespace {

using activation::Input;

/// Some queries of one batch entry and query head.
struct Unit {
  int64_t b;
  int64_t head;
  Range queries;
};

/// The sums of all wanted gradients, one tensor after another.
struct Sums {
  std::array<int64_t, most_parameters> first = {};  ///< the first element of each tensor
  int64_t elements = 0;
};

int64_t elements_of(const BoundTensor& tensor) {
  int64_t count = 1;
  for (int i = 0; i < tensor.rank; ++i) count *= tensor.sizes[i];
  return count;
}

template <class T>
class Pass {
 public:
  using Compute = ComputeType<T>;
  static constexpr int64_t tile_queries = 128, tile_keys = 128;

  explicit Pass(const Call<T>& call)
      : call_(call), function_(call.inputs.function()), params_(dense_gradients(call.params)) {
    const std::vector<Input>& inputs = function_.inputs();
    for (std::size_t n = 0; n < inputs.size(); ++n) {
      if (inputs[n].kind == Input::Kind::index || params_.grad_parameters[inputs[n].tensor].data == nullptr) continue;
      differentiated_.push_back(n);
    }
    for (std::size_t i = 0; i < most_parameters; ++i) {
      if (params_.grad_parameters[i].data == nullptr) continue;
      sums_.first[i] = sums_.elements;
      sums_.elements += elements_of(params_.grad_parameters[i]);
    }
    for (int64_t head = 0; head < params_.heads_q; ++head) {
      evaluators_.emplace_back(function_.of_head(head).input_derivatives(differentiated_),
                               inputs_of_head(function_, params_.parameters, head));
    }
  }

  int64_t elements() const { return sums_.elements; }

  /// Adds the gradients of every `groups`-th unit to the sums of a group.
  void run_group(const std::vector<Unit>& units, int64_t group, int64_t groups, double* sums) const {
    Worker worker(*this, sums);
    for (auto unit = static_cast<std::size_t>(group); unit < units.size(); unit += static_cast<std::size_t>(groups)) {
      worker.run(units[unit]);
    }
  }

  /// Adds the sums of all groups and stores the gradients.
  void store(const double* sums, int64_t groups) const {
    for (std::size_t i = 0; i < most_parameters; ++i) {
      const BoundTensor& gradient = call_.params.grad_parameters[i];
      if (gradient.data == nullptr) continue;
      const int last = gradient.rank - 1;
      const int64_t row = last < 0 ? 1 : gradient.sizes[last], stride = last < 0 ? 0 : gradient.strides[last];
      const int64_t count = elements_of(gradient);
      std::vector<double> total(static_cast<std::size_t>(row));
      for (int64_t begin = 0; begin < count; begin += row) {
        std::fill(total.begin(), total.end(), 0.0);
        for (int64_t group = 0; group < groups; ++group) {
          const double* const of_group = sums + group * sums_.elements + sums_.first[i] + begin;
          for (int64_t k = 0; k < row; ++k) total[static_cast<std::size_t>(k)] += of_group[k];
        }
        int64_t offset = 0, rest = begin / row;
        for (int axis = last; axis-- > 0; rest /= gradient.sizes[axis]) {
          offset += rest % gradient.sizes[axis] * gradient.strides[axis];
        }
        for (int64_t k = 0; k < row; ++k) {
          const double sum = total[static_cast<std::size_t>(k)];
          if (gradient.type == NumberType::float64) {
            static_cast<double*>(gradient.data)[offset + k * stride] = sum;
          } else {
            static_cast<float*>(gradient.data)[offset + k * stride] = static_cast<float>(sum);
          }
        }
      }
    }
  }

 private:
  /// The call with the strides of contiguous sums in place of the strides of the gradients.
  static Params dense_gradients(Params params) {
    for (BoundTensor& gradient : params.grad_parameters) {
      int64_t stride = 1;
      for (int axis = gradient.rank; axis-- > 0; stride *= gradient.sizes[axis]) gradient.strides[axis] = stride;
    }
    return params;
  }

  class Worker {
   public:
    Worker(const Pass& pass, double* sums)
        : pass_(pass),
          call_(pass.call_),
          params_(pass.params_),
          mask_(call_.mask, params_),
          inputs_(call_.inputs, params_, params_.parameters,
                  [this](int64_t query, int64_t key) { return mask_.keeps(query, key); }),
          sums_(sums) {
      const int64_t scores = tile_queries * tile_keys;
      const auto results = static_cast<int64_t>(pass.differentiated_.size());
      const std::array<int64_t, 6> sizes = {tile_queries * call_.width_q,
                                            tile_queries * call_.width_v,
                                            call_.width_q * tile_keys,
                                            call_.width_v * tile_keys,
                                            scores * 2,
                                            scores * results};
      int64_t total = 0;
      for (const int64_t size : sizes) total += size;
      memory_ = allocate_aligned(total * static_cast<int64_t>(sizeof(Compute)));
      query_ = static_cast<Compute*>(memory_.get());
      grad_output_ = query_ + sizes[0];
      keys_ = grad_output_ + sizes[1];
      values_ = keys_ + sizes[2];
      scores_ = values_ + sizes[3];
      dp_ = scores_ + scores;
      for (int64_t k = 0; k < results; ++k) derivatives_.push_back(dp_ + scores * (k + 1));
    }

    void run(const Unit& unit) {
      mask_.enter(unit.b);
      const Range queries = unit.queries;
      const auto out_scale = static_cast<Compute>(
          params_.out_scale.of(unit.b, params_.queries.size(unit.b), params_.keys.size(unit.b)));
      pack_rows<T>(rows_of<const T>(params_.query, params_.queries, unit.b, queries.begin, unit.head),
                   params_.query.row_stride, queries.size(), params_.head_dim, static_cast<Compute>(params_.scale),
                   query_, call_.width_q);
      pack_rows<T>(rows_of<const T>(params_.grad_output, params_.queries, unit.b, queries.begin, unit.head),
                   params_.grad_output.row_stride, queries.size(), params_.head_dim_v, out_scale, grad_output_,
                   call_.width_v);
      for_each_part(mask_.keys(queries), tile_keys, plan::cpu_vector,
                    [&](Range keys) { add_tile(unit, keys); });
    }

   private:
    void add_tile(const Unit& unit, Range keys) {
      const Columns columns = mask_.enter_tile(unit.head, unit.queries, keys);
      if (columns.count == 0) return;
      const int64_t key_head = params_.key_head(unit.head);
      pack_tile_transposed<T>(rows_of<const T>(params_.key, params_.keys, unit.b, keys.begin, key_head),
                              params_.key.row_stride, keys.size(), params_.head_dim, keys_, tile_keys);
      pack_tile_transposed<T>(rows_of<const T>(params_.value, params_.keys, unit.b, keys.begin, key_head),
                              params_.value.row_stride, keys.size(), params_.head_dim_v, values_, tile_keys);
      const int64_t rows = unit.queries.size(), count = rows * columns.count;
      multiply<Compute>({query_, call_.width_q}, {keys_ + columns.begin, tile_keys}, {scores_, columns.count}, rows,
                        columns.count, params_.head_dim, Sum::overwrite);
      multiply<Compute>({grad_output_, call_.width_v}, {values_ + columns.begin, tile_keys}, {dp_, columns.count}, rows,
                        columns.count, params_.head_dim_v, Sum::overwrite);
      inputs_.fill(score_tile_of(unit.b, unit.head, unit.queries, keys, columns), true);
      pass_.evaluators_[static_cast<std::size_t>(unit.head)].evaluate(scores_, count, derivatives_, inputs_.arrays());
      for (std::size_t k = 0; k < derivatives_.size(); ++k) {
        Compute* const terms = derivatives_[k];
        for (int64_t i = 0; i < count; ++i) terms[i] *= dp_[i];
        mask_.clear_masked(terms);
        add_terms(pass_.differentiated_[k], unit.head, terms, count);
      }
    }

    void add_terms(std::size_t input, int64_t head, const Compute* terms, int64_t count) {
      const Input& read = pass_.function_.inputs()[input];
      double* const sums = sums_ + pass_.sums_.first[read.tensor];
      if (read.kind == Input::Kind::number) {
        double sum = 0;
        for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(terms[i]);
        sums[params_.grad_parameters[read.tensor].offset_of_head(head)] += sum;
        return;
      }
      inputs_.add_gradient(input, terms, sums);
    }

    const Pass& pass_;
    const Call<T>& call_;
    const Params& params_;
    TileMask<Compute> mask_;
    TileInputs<Compute> inputs_;
    double* sums_;
    AlignedMemory memory_;
    Compute* query_;
    Compute* grad_output_;
    Compute* keys_;
    Compute* values_;
    Compute* scores_;
    Compute* dp_;
    std::vector<Compute*> derivatives_;
  };

  const Call<T>& call_;
  const activation::Function& function_;
  Params params_;
  std::vector<std::size_t> differentiated_;  ///< the inputs whose derivatives the evaluators compute
  std::vector<Evaluator> evaluators_;        ///< one for each query head
  Sums sums_;
};

}  // namespace

template <class T>
void parameter_gradients(const Call<T>& call, int64_t batch) {
  const Pass<T> pass(call);
  std::vector<Unit> units;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t head = 0; head < call.params.heads_q; ++head) {
      for_each_part({0, call.params.queries.size(b)}, Pass<T>::tile_queries, 1, [&](Range queries) {
        units.push_back({b, head, queries});
      });
    }
  }
  const int64_t groups = std::clamp<int64_t>(static_cast<int64_t>(units.size()), 1, call.schedule.threads);
  std::vector<double> sums(static_cast<std::size_t>(groups * pass.elements()));
  for_each_unit(call.schedule.threads, groups,
                [&](int64_t group) { pass.run_group(units, group, groups, sums.data() + group * pass.elements()); });
  pass.store(sums.data(), groups);
}

template void parameter_gradients(const Call<float>&, int64_t);
template void parameter_gradients(const Call<double>&, int64_t);
template void parameter_gradients(const Call<BFloat16>&, int64_t);
template void parameter_gradients(const Call<Float16>&, int64_t);

}  // namespace gdpa::cpu
