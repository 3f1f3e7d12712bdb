/* Op definitions ("capstan.ops/1") and the catalogue of standard ops.
 *
 * A plugin may emit any op of the catalogue through program.h, and define ops of its own by offering a
 * component of kind "ops" whose vtable is capstan_ops_v1. */
#ifndef CAPSTAN_PLUGIN_API_OPS_H_
#define CAPSTAN_PLUGIN_API_OPS_H_

#include "plugin_api/base.h"
#include "plugin_api/device.h"
#include "plugin_api/plugin.h"
#include "plugin_api/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- flags of an op ----------------------------------------------------------------------- */

#define CAPSTAN_OP_PURE 1u   /* outputs depend on inputs and attributes only: may be cloned */
#define CAPSTAN_OP_RANDOM 2u /* pure given its RNG key attribute and step/sample/position inputs */
#define CAPSTAN_OP_COLLECTIVE 4u   /* every rank of its axis must reach it, in the same order */
#define CAPSTAN_OP_SIDE_EFFECT 8u  /* must not be removed though nothing reads its outputs */
#define CAPSTAN_OP_ELEMENTWISE 16u /* output i has the shape of input 0 and may share its storage */

/* effects of an output operand */
#define CAPSTAN_WRITE 0      /* written whole, never read */
#define CAPSTAN_UPDATE 1     /* read and written (optimizer states, caches) */
#define CAPSTAN_ACCUMULATE 2 /* first write of a step overwrites, later writes add */

/* ---- definition of an op by a plugin --------------------------------------------------------- */

/* What infer may ask and answer. Descs of omitted optional inputs are NULL. */
typedef struct capstan_infer {
  size_t struct_size;
  size_t input_count;
  const capstan_tensor_desc* const* inputs;
  size_t attr_count;
  const capstan_attr* attrs;
  void* host;
  /* Adds the next output. placement NULL: the host keeps what an element-wise op of input 0 would
   * have, and refuses partial inputs. Arrays are copied. */
  capstan_status* (*add_output)(struct capstan_infer* ctx, capstan_dtype dtype, int32_t ndim,
                                const int64_t* shape, const capstan_placement* placement,
                                size_t placement_count);
} capstan_infer;

typedef struct capstan_cost {
  size_t struct_size;
  double flops;         /* floating-point operations of one launch on this rank */
  double bytes_read;    /* from device memory */
  double bytes_written; /* to device memory */
} capstan_cost;

typedef struct capstan_op_def {
  size_t struct_size;
  const char* kind;          /* "org.example.my_op"; names without a dot are the catalogue's */
  int32_t semantics_version; /* raise when results change */
  uint32_t flags;            /* CAPSTAN_OP_* */
  size_t min_inputs, max_inputs;
  size_t output_count;
  const int32_t* output_effects; /* one per output */
  const char* doc;
  capstan_status* (*infer)(capstan_infer* ctx);
  capstan_status* (*vjp)(capstan_vjp* ctx); /* NULL: not differentiable */
  capstan_status* (*cost)(const capstan_infer* ctx,
                          capstan_cost* cost); /* NULL: bytes of operands */
  /* Rewrites the op into standard ops, for devices without a kernel; NULL: needs a kernel. */
  capstan_status* (*decompose)(capstan_program* program, capstan_op op);
  /* Kernels by device id ("cpu"); NULL-terminated array, may be NULL. */
  const capstan_kernel_def* const* kernels;
} capstan_op_def;

#define CAPSTAN_OPS_INTERFACE "capstan.ops/1"
typedef struct capstan_ops_v1 {
  size_t struct_size;
  /* Called once at load, with a host valid until the plugin's deinit. May be NULL. */
  capstan_status* (*bind)(const capstan_host* host);
  const capstan_op_def* (*get)(size_t index); /* NULL past the end */
} capstan_ops_v1;

/* ---- catalogue of standard ops, semantics version 1 unless said ------------------------------
 *
 * f32 statistics, losses and counts are f64 where the op's f operands are f64.
 * Notation: name(inputs) -> outputs; attributes. `x?` optional input; `+y` accumulated output; `!y`
 * updated output. f: f32, bf16, f16 or f64, one dtype for all operands unless said. B sequences, T
 * positions, C channels; [...] any leading dims. Attributes are int, float or string with the default
 * after '='. Placement rules per mesh axis follow the arrow `::`; "linear in x" means a partial x
 * gives a partial result; operands not named must be replicated.
 *
 * Dense layers
 *  embedding(ids i32[...], table f[V,C]) -> f[...,C]; vocab_start=0
 *      :: ids S(d) -> S(d); table S(0) and ids R -> P(sum); table S(1) -> S(last)
 *      A table cut by rows has the attribute vocab_start, and ids outside [vocab_start,
 *      vocab_start+V) give zero rows; without the attribute they are an error
 *  embedding_grad(ids, dy f[...,C]) -> +dtable f[V,C]; vocab, vocab_start=0, placement="" (the axes
 *      that cut the table's rows, "{tp:S(0)}")
 *  linear(x f[...,K], weight f[N,K], bias? f[N]) -> f[...,N]
 *      :: x S(lead) -> S(lead); weight S(0), bias S(0) -> S(last); x S(last), weight S(1) -> P(sum),
 *         bias then refused; linear in x
 *  linear_dx(dy f[...,N], weight f[N,K]) -> f[...,K]       dy S(last), weight S(0) -> P(sum)
 *  linear_dw(x f[...,K], dy f[...,N]) -> +dweight f[N,K]   x S(lead), dy S(lead) -> P(sum)
 *  bias_grad(dy f[...,N]) -> +dbias f[N]
 *  linear_gelu(x, weight, bias?) -> y f[...,N], pre f[...,N]; approximate="tanh"
 *      y = gelu(pre), pre = linear(x, weight, bias)
 *  matmul(a f[...,M,K], b f[...,K,N]) -> f[...,M,N]; transpose_a=0, transpose_b=0
 *
 * Normalisation and activation
 *  layer_norm(x f[...,C], weight f[C], bias? f[C]) -> y, mean f32[...], rstd f32[...]; eps=1e-5
 *  layer_norm_grad(dy, x, weight, mean, rstd) -> dx, +dweight, +dbias
 *  rms_norm(x f[...,C], weight f[C]) -> y, rstd f32[...]; eps=1e-5
 *  rms_norm_grad(dy, x, weight, rstd) -> dx, +dweight
 *  gelu(x) -> y; approximate="tanh"|"none"      gelu_grad(dy, x) -> dx; approximate
 *  swiglu(gate, up) -> y = silu(gate) * up      swiglu_grad(dy, gate, up) -> dgate, dup
 *  softmax(x) -> y over the last dim            softmax_grad(dy, y) -> dx
 *  relu, silu, sigmoid, tanh, exp, log, sqrt, rsqrt, reciprocal, neg, square, abs (x) -> y
 *  unary_grad(dy, x) -> dx; function="relu"|"silu"|...
 *  dropout(x f[B,T,C], step i64[1], sample i64[B], position i32[B,T]) -> y; p, key, channel_start=0
 *      mask from Philox (seed, key, step) at (sample, position, channel): any sharding drops alike
 *
 * Attention
 *  rotary(x f[B,T,H*D], position i32[B,T]) -> y; head_dim, theta=10000.0, inverse=0, interleaved=0,
 *      scaling_factor=1.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=0
 *  attention(q f[B,T,H*D], k f[B,S,G*D], v f[B,S,G*D], step? i64[1], sample? i64[B])
 *      -> o f[B,T,H*D], lse f32[B,H,T]; head_dim, causal=1, scale=0 (0: 1/sqrt(D)), dropout=0.0, key=0,
 *      head_start=0.  H a multiple of G.  :: S(0) alike; q,k,v S(2) alike -> o S(2), lse S(1)
 *  attention_grad(do, q, k, v, o, lse, step?, sample?) -> dq, dk, dv; as attention
 *  attention_cached(q f[B,T,H*D], k_cache f[B,S,G*D], v_cache, position i32[B]) -> o; head_dim, scale=0
 *      query t of a row attends to cache rows 0 .. position+t
 *  cache_write(src f[B,T,C], position i32[B]) -> !cache f[B,S,C]
 *  select_position(x f[B,T,C], index i32[B]) -> f[B,1,C]
 *
 * Losses; count f32[1] is the step's weight N, the result is divided by it, or 0 where N is 0;
 * gradient ops may be given N/d, of any sign, for a cotangent d; targets i32, -1 ignored
 *  linear_cross_entropy(h f[...,K], weight f[V,K], targets i32[...], count) -> loss f32[1];
 *      valid_vocab=0 (0: V)                            :: h, targets S(lead) alike -> P(sum)
 *  linear_cross_entropy_grad(h, weight, targets, count) -> loss, dh, +dweight; valid_vocab=0
 *  cross_entropy(logits f[...,V], targets, count) -> loss   cross_entropy_grad(..) -> loss, dlogits
 *  lce_stats(h, weight, targets) -> stats f32[...,3]; vocab_start, valid_vocab=0
 *      (max, sum of exp relative to it, target logit or 0)         :: weight S(0) -> stats V
 *  ce_stats(logits f[...,V], targets) -> stats, the same of logits that exist; vocab_start,
 *      valid_vocab=0                                               :: logits S(last) -> stats V
 *  lce_merge(stats f32[R,...,3], targets, count, h?, weight?, logits?) -> loss, lse f32[...];
 *      vocab_start, valid_vocab=0.  h, weight, logits and the attributes as lce_stats or ce_stats: only
 *      its gradient reads them
 *  lce_grad(h, weight, targets, lse, count, logits?) -> dh, +dweight; vocab_start, valid_vocab=0.
 *      logits: kept from the forward pass, else made again
 *
 * Element-wise arithmetic and shape
 *  add, sub, mul, div (a, b) -> y: b has a's shape, or a's trailing dims, or one element
 *      :: add, sub: P with P; mul, div: linear in a
 *  scale(x) -> y; factor            copy(x) -> y          cast(x) -> y; dtype="f32"
 *  accumulate(x) -> +y              reshape(x) -> y; shape (ints)
 *  transpose(x) -> y; perm (ints)   slice(x) -> y; dim, start, size    pad(x) -> y; dim, start, size
 *      slice and pad with axis="tp": R -> S(dim) with that range, which may overlap other ranks'; S(dim) -> P
 *  concat(x...) -> y; dim           reduce_sum, reduce_max (x) -> y; dim (removed)
 *  broadcast(x) -> y; dim, size, placement="" (inserts a dim, which the axes of placement cut)
 *  gather(x f[R,C], index i32[...]) -> f[...,C]      gather_grad(index, dy) -> dx; rows
 *  fill() -> y; value, shape, dtype, placement=""
 *  random_normal, random_uniform () -> y; key, mean, std | low, high, shape, dtype, placement,
 *      global_shape, start: y is the part at start of a tensor of global_shape; element i of that
 *      tensor's row-major order is a function of (seed, key, i) alone
 *  quantize(x) -> codes i8, scales f32; block    dequantize(codes, scales) -> x; block, dtype
 *      x f[...,C] -> scales [...,C/block]; only a single row may end in a short block
 *
 * Update
 *  sum_squares(x...) -> f32[1]: inputs cut by the same axes; P over those  all_finite(x...) -> bool[1]
 *  clip_scale(norm2 f32[1]) -> norm f32[1], scale f32[1]; clip (scale = min(1, clip/(norm+1e-6)))
 *  adamw(grad, lr f32[1], step i64[1], grad_scale f32[1]) -> !param, !exp_avg, !exp_avg_sq;
 *      beta1, beta2, eps, weight_decay   (Loshchilov & Hutter 2019, decoupled decay first)
 *  sgd(grad, lr, grad_scale) -> !param, !momentum; momentum, nesterov=0, weight_decay
 *  sgd_plain(grad, lr, grad_scale) -> !param; weight_decay
 *
 * Communication; attribute axis names a mesh axis or group. Types as program.md of the design.
 *  copy_to_group(x R) -> R       reduce_from_group(x P) -> R
 *  all_reduce(x... P) -> y... R; reduce="sum"
 *  all_gather(x... S(dim) or V) -> y... R; dim    reduce_scatter(x... P) -> y... S(dim); dim
 *  shard(x R) -> S(dim); dim           all_to_all(x S(from)) -> S(to); from, to
 *      uneven parts of all_gather, reduce_scatter and shard: counts (ints, one a rank), index (this
 *      rank's place in the axis). x... is a list that travels as one, each typed by itself and all of
 *      one dtype; counts then holds the shares of the first tensor, then of the second, ...
 *      A gradient may be the output of the collective that reads it: it is P before and R after.
 *  broadcast_from(x V) -> R; root      send(x); peer, channel, requires_grad=1
 *  recv() -> y; peer, channel, shape, dtype, placement="", requires_grad=1
 *  send_grad / recv_grad as send / recv for cotangents
 *  reduce_gradient(x... P) -> y... R   reinterpret(x) -> y; placement, reason
 */

#ifdef __cplusplus
}
#endif
#endif /* CAPSTAN_PLUGIN_API_OPS_H_ */
