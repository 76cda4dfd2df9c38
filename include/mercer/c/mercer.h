/// \file
/// Mercer for C (C99), and for every language that calls C: Kronecker products and pairwise matrices of arrays that the
/// caller owns. Operations are those of mercer/kron.h and mercer/pairwise.h, where shapes, dtypes, accuracy and rules
/// of memory are written down; this page says what C adds.
///
/// - **Errors**: Every function that can fail returns a mercer_status, and mercer_last_error() says why: the rule and
///   what was received, in the words of C++. All is checked before anything is written; only a cancelled call leaves
///   its output half written. No exception leaves a function, not even one out of a callback.
/// - **Arrays**: The caller's, described by a mercer_tensor; nothing is kept after the call that takes it.
/// - **Options**: A null pointer stands for the defaults. Structs that may grow carry their size: start from their
/// _INIT
///   macro, or set struct_size and every field. A library that is older than the caller's header refuses fields that it
///   does not know, unless they are zero.
/// - **Threads**: Contexts and formulas serve many threads at once. Destroy one when no call uses it any more.
/// - **CUDA**: Work goes into the stream of the queue, and nothing waits. The first call of a kind compiles.
///
/// \code
/// mercer_formula* f;
/// if (mercer_formula_create("sqrt(sum((x-z)^2))", &f) != MERCER_OK ||
///     mercer_pairwise(f, &x, &z, &out, NULL, NULL) != MERCER_OK)
///   puts(mercer_last_error());
/// mercer_formula_destroy(f);
/// \endcode
#ifndef MERCER_C_MERCER_H
#define MERCER_C_MERCER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// ---- Versions and errors --------------------------------------------------------------------------------------------

/// "0.1.0", of the library that runs. Until 1.0 a minor version may change this interface.
const char* mercer_version(void);

/// Values stay what they are; later versions may add some.
typedef enum mercer_status {
  MERCER_OK = 0,
  MERCER_INVALID_ARGUMENT = 1,  ///< a rule of the call was broken
  MERCER_UNSUPPORTED = 2,  ///< right, but not offered
  MERCER_COMPILE_FAILED = 3,  ///< code generation failed
  MERCER_DEVICE_FAILED = 4,  ///< a device or its memory failed
  MERCER_NUMERICAL = 5,  ///< the data has no answer (a singular matrix)
  MERCER_CANCELLED = 6,  ///< the progress callback asked to stop
  MERCER_OUT_OF_MEMORY = 7,  ///< of the host
  MERCER_INTERNAL = 8  ///< a fault of Mercer's, or an exception out of a callback
} mercer_status;

/// "invalid_argument"; "unknown" for a number that is no status.
const char* mercer_status_name(int32_t status);

/// Why the last function of this thread that failed did so; "" where none has. The text stays until the next failure.
const char* mercer_last_error(void);

// ---- Arrays ---------------------------------------------------------------------------------------------------------

/// Element types. Which of them a function takes stands there; MERCER_BOOLEAN is known so that it can be refused by
/// name.
typedef enum mercer_dtype {
  MERCER_FLOAT16 = 0,
  MERCER_BFLOAT16 = 1,
  MERCER_FLOAT32 = 2,
  MERCER_FLOAT64 = 3,
  MERCER_UINT8 = 4,
  MERCER_INT64 = 5,
  MERCER_BOOLEAN = 6,
  MERCER_INT32 = 7,
  MERCER_INT8 = 8
} mercer_dtype;

/// Memory of the host, or of an NVIDIA GPU.
typedef enum mercer_device_kind { MERCER_CPU = 0, MERCER_CUDA = 1 } mercer_device_kind;

/// The most axes of an array.
#define MERCER_TENSOR_MAX_AXES 64

/// A strided view of the caller's memory: element (i0, i1, ...) lies at
/// (char*)data + size of an element * (i0 * strides[0] + i1 * strides[1] + ...). Inputs are never written. This struct
/// does not grow, so that there may be arrays of it.
typedef struct mercer_tensor {
  void* data;  ///< element (0, 0, ...)
  int32_t dtype;  ///< a mercer_dtype
  int32_t ndim;  ///< 0 to MERCER_TENSOR_MAX_AXES
  int32_t device_kind;  ///< a mercer_device_kind
  int32_t device_index;  ///< of CUDA devices, as the driver counts them
  const int64_t* shape;  ///< [ndim]
  const int64_t* strides;  ///< [ndim], in elements, zero and negative ones too; null: contiguous, the last axis fastest
} mercer_tensor;

// ---- Where calls run ------------------------------------------------------------------------------------------------

/// A thread pool, a target and the compiled plans. Programs rarely need one of their own: in every function null stands
/// for the context that all of the process share.
typedef struct mercer_context mercer_context;

/// Writes a new context to `context`; the caller destroys it.
mercer_status mercer_context_create(mercer_context** context);
/// Null is let be.
void mercer_context_destroy(mercer_context* context);
/// Threads that a call uses, the calling one among them: 1 to 4096, or 0 for the machine's own number.
mercer_status mercer_context_set_threads(mercer_context* context, int32_t count);
/// Writes that number to `count`.
mercer_status mercer_context_threads(mercer_context* context, int32_t* count);
/// "auto", "x86_avx512", "x86_avx2" or "interpreter", for calls on the CPU from now on.
mercer_status mercer_context_set_target(mercer_context* context, const char* name);
/// "fp32" (and "fp64", the same), "direct", "tf32" or "bf16": how float32 runs on tensor cores (mercer/device.h).
mercer_status mercer_context_set_precision(mercer_context* context, const char* name);

/// Memory of at least so many bytes at a multiple of 16, on the device of the call's arrays; null where there is none,
/// which ends the call. It stays until the work put into the stream is done.
typedef void* (*mercer_allocate)(void* user, int64_t bytes);

/// `done` of `total` steps so far; asked on the calling thread, at most every 50 ms. Zero cancels the call.
typedef int32_t (*mercer_progress)(void* user, double done, double total);

/// Where a call on CUDA arrays puts its work, and where scratch memory comes from.
typedef struct mercer_queue {
  size_t struct_size;  ///< sizeof(mercer_queue)
  void* stream;  ///< CUstream or cudaStream_t of the arrays' device; null: its default stream
  mercer_allocate allocate;  ///< asked at most once a call, on the CPU by Kronecker products alone; null: Mercer's pool
  void* user;  ///< handed to `allocate`
} mercer_queue;
/// A queue to start from: the default stream, Mercer's pool.
#define MERCER_QUEUE_INIT {sizeof(mercer_queue), NULL, NULL, NULL}

// ---- Kronecker products (mercer/kron.h) -----------------------------------------------------------------------------
//
//   mercer_kron_matmul        out = alpha op(X) (op(F1) (x) ... (x) op(FN)) + beta Y
//   mercer_kron_kron_matmul   out = alpha (op(F1) (x) ... (x) op(FN)) op(X) + beta Y
//
// op(F_i) [..., P_i, Q_i], 1 to 64 factors, each of a shape of its own. The first takes op(x) [..., M, P1 ... PN] and
// out [..., M, Q1 ... QN], the second op(x) [..., Q1 ... QN, M] and out [..., P1 ... PN, M]; a vector x stands for
// M = 1. Leading axes of x and of all factors broadcast. One dtype for all: float16, bfloat16, float32, float64, int32
// or int64. out may be the very view x, where the shapes allow, or the very view y; else it must not overlap them, nor
// a factor.

/// What a product takes in addition to x, the factors and out.
typedef struct mercer_kron_options {
  size_t struct_size;  ///< sizeof(mercer_kron_options)
  double alpha;  ///< 1 by default; a whole number where the arrays hold such
  double beta;  ///< 0 by default, likewise
  const mercer_tensor* y;  ///< needed where beta is not 0; broadcasts to the shape of out
  const uint8_t* transpose_factors;  ///< one flag for each factor; null: none
  int32_t transpose_x;  ///< op(x) is x with its last two axes swapped
  const mercer_queue* queue;  ///< may be null
  mercer_progress progress;  ///< of calls on the CPU; may be null
  void* progress_user;  ///< handed to `progress`
} mercer_kron_options;
/// Options to start from: alpha = 1, beta = 0, nothing transposed.
#define MERCER_KRON_OPTIONS_INIT {sizeof(mercer_kron_options), 1.0, 0.0, NULL, NULL, 0, NULL, NULL, NULL}

/// out = alpha op(x) (op(F1) (x) ... (x) op(FN)) + beta y.
mercer_status mercer_kron_matmul(const mercer_tensor* x, const mercer_tensor* factors, size_t factor_count,
                                 const mercer_tensor* out, const mercer_kron_options* options,
                                 mercer_context* context);
/// out = alpha (op(F1) (x) ... (x) op(FN)) op(x) + beta y.
mercer_status mercer_kron_kron_matmul(const mercer_tensor* factors, size_t factor_count, const mercer_tensor* x,
                                      const mercer_tensor* out, const mercer_kron_options* options,
                                      mercer_context* context);

/// The shape that out must have. `ndim` comes with the room of `shape` and goes with the number of axes; with a null
/// `shape` only that is told. Fails as the call would for shapes that do not fit; no array needs memory behind its
/// address.
mercer_status mercer_kron_matmul_shape(const mercer_tensor* x, const mercer_tensor* factors, size_t factor_count,
                                       const mercer_kron_options* options, int32_t* ndim, int64_t* shape);
/// Likewise for mercer_kron_kron_matmul.
mercer_status mercer_kron_kron_matmul_shape(const mercer_tensor* factors, size_t factor_count, const mercer_tensor* x,
                                            const mercer_kron_options* options, int32_t* ndim, int64_t* shape);

/// Bytes that the call will ask of queue->allocate, on the CPU too, where it depends on the number of threads. All is
/// checked as in the call, and nothing is computed.
mercer_status mercer_kron_matmul_workspace_size(const mercer_tensor* x, const mercer_tensor* factors,
                                                size_t factor_count, const mercer_tensor* out,
                                                const mercer_kron_options* options, mercer_context* context,
                                                int64_t* bytes);
/// Likewise for mercer_kron_kron_matmul.
mercer_status mercer_kron_kron_matmul_workspace_size(const mercer_tensor* factors, size_t factor_count,
                                                     const mercer_tensor* x, const mercer_tensor* out,
                                                     const mercer_kron_options* options, mercer_context* context,
                                                     int64_t* bytes);

// ---- Pairwise matrices (mercer/pairwise.h) --------------------------------------------------------------------------

/// A formula made ready for calls, "exp(-sum((x-z)^2)/h)" say. Plans are kept by the context under its text.
typedef struct mercer_formula mercer_formula;

/// Fails with the place of the fault for a text that is no formula.
mercer_status mercer_formula_create(const char* text, mercer_formula** formula);
/// The entry of the zoo of that name or alias, "laplace" or "l1", with the defaults of its options.
mercer_status mercer_formula_from_zoo(const char* name, mercer_formula** formula);
/// Null is let be.
void mercer_formula_destroy(mercer_formula* formula);

/// The value of a parameter: a number, or an array of float32, float64 or int64 whose axes are batch axes.
typedef struct mercer_param {
  const char* name;  ///< as the formula has it
  double number;  ///< the value where there is no array
  const mercer_tensor* array;  ///< may be null
} mercer_param;

/// What a call takes in addition to its points; null, and a count of 0, for what it does not take.
typedef struct mercer_arguments {
  size_t struct_size;  ///< sizeof(mercer_arguments)
  const mercer_param* params;  ///< [param_count]; those with a default may be left out
  size_t param_count;  ///< how many are given
  const mercer_tensor* w;  ///< [K], weights of the features
  const mercer_tensor* row;  ///< [..., M], a number per point of x
  const mercer_tensor* col;  ///< [..., N], and of z
  int64_t i_offset;  ///< i = m + i_offset: for parts of a larger matrix
  int64_t j_offset;  ///< j = n + j_offset
  const mercer_queue* queue;  ///< may be null
  mercer_progress progress;  ///< of calls on the CPU; may be null
  void* progress_user;  ///< handed to `progress`
} mercer_arguments;
/// Arguments to start from: none.
#define MERCER_ARGUMENTS_INIT {sizeof(mercer_arguments), NULL, 0, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL}

/// out[..., m, n] = f(x[..., m, :], z[..., n, :]) for x [..., M, K], z [..., N, K], out [..., M, N]. x and z are
/// float16, bfloat16, uint8, int8, float32, float64 or int32; out is float64 where they are one of the last two, else
/// float32, float16 or bfloat16. A null z stands for the points x: of a symmetric formula half is computed then, and
/// the result is symmetric bitwise.
mercer_status mercer_pairwise(const mercer_formula* formula, const mercer_tensor* x, const mercer_tensor* z,
                              const mercer_tensor* out, const mercer_arguments* arguments, mercer_context* context);

/// The shape that out must have, told as by mercer_kron_matmul_shape.
mercer_status mercer_pairwise_shape(const mercer_formula* formula, const mercer_tensor* x, const mercer_tensor* z,
                                    const mercer_arguments* arguments, int32_t* ndim, int64_t* shape);

/// Bytes that the call will ask of queue->allocate; 0 on the CPU. All is checked as in the call.
mercer_status mercer_pairwise_workspace_size(const mercer_formula* formula, const mercer_tensor* x,
                                             const mercer_tensor* z, const mercer_tensor* out,
                                             const mercer_arguments* arguments, mercer_context* context,
                                             int64_t* bytes);

#ifdef __cplusplus
}
#endif

#endif  // MERCER_C_MERCER_H
