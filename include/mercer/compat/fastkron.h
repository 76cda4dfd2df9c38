/* FastKron's interface on Mercer, for programs of C and C++ that call FastKron: the names, values and orders of
 * arguments are those of its fastkron.h, so a program compiled against either header links with libmercer_fastkron.
 *
 *   MKM, gemkm   Z = alpha op(X) (op(F1) (x) ... (x) op(FN)) + beta Y     op(X) [M, P1 ... PN], op(F_i) [P_i, Q_i]
 *   KMM, gekmm   Z = alpha (op(F1) (x) ... (x) op(FN)) op(X) + beta Y     op(X) [P1 ... PN, M], op(F_i) [Q_i, P_i]
 *
 * Y and Z are [M, Q1 ... QN] for MKM and [Q1 ... QN, M] for KMM. All matrices are contiguous, N by rows, T by columns.
 * What is computed, and how exactly, stands in mercer/kron.h.
 *
 * Every function checks its arguments before it writes anything, and answers by an error; none of them throws. After
 * an error, mercer_last_error() (mercer/c/mercer.h) says which rule was broken and what was received.
 *
 * Arrays lie in memory of the CPU for fastKronBackend_X86. For fastKronBackend_CUDA they lie on one CUDA device; the
 * work goes into the handle's stream, and nothing waits for it.
 */
#ifndef MERCER_COMPAT_FASTKRON_H
#define MERCER_COMPAT_FASTKRON_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __cplusplus
#define MERCER_FASTKRON_UNSIGNED : unsigned int  /* so that a number which is no enumerator can be refused */
#else
#define MERCER_FASTKRON_UNSIGNED
#endif

/* Ends the program, with a line on the standard output, unless the call succeeds. */
#define FastKronCHECK(call)                                                                                \
  do {                                                                                                     \
    const fastKronError fastkron_answer_ = (call);                                                         \
    if (fastkron_answer_ != fastKronSuccess) {                                                             \
      printf("%s:%d: FastKron error %d: %s\n", __FILE__, __LINE__, (int)fastkron_answer_,                  \
             fastKronGetErrorString(fastkron_answer_));                                                    \
      exit(EXIT_FAILURE);                                                                                  \
    }                                                                                                      \
  } while (0)

enum fastKronOp MERCER_FASTKRON_UNSIGNED {
  fastKronOp_N = 1, /* the matrix lies by rows */
  fastKronOp_T = 2  /* the matrix lies by columns: its transpose lies by rows */
};

/* Bits, so that a handle can have several. Mercer has X86, which is the CPU, and CUDA. */
enum fastKronBackend MERCER_FASTKRON_UNSIGNED {
  fastKronBackend_NONE = 1,
  fastKronBackend_X86 = 2,
  fastKronBackend_ARM = 4,
  fastKronBackend_CUDA = 8,
  fastKronBackend_HIP = 16
};

/* Bits. Tune measures, at the first gemkm or gekmm of a shape, which plan computes it fastest (mercer::kron::tune).
 * UseFusion says nothing to Mercer. */
enum fastKronOptions MERCER_FASTKRON_UNSIGNED {
  fastKronOptionsNone = 1,
  fastKronOptionsUseFusion = 2,
  fastKronOptionsTune = 4
};

enum fastKronError MERCER_FASTKRON_UNSIGNED {
  fastKronSuccess = 0,
  fastKronBackendNotAvailable = 1, /* a backend that there is not, on this machine or in the handle */
  fastKronInvalidMemoryAccess = 2, /* memory of the host, or of another device, for the CUDA backend */
  fastKronKernelNotFound = 3,      /* a kernel could not be compiled */
  fastKronInvalidArgument = 4,     /* a rule of the call was broken */
  fastKronInvalidKMMProblem = 5,   /* no factor, more than 64, or sizes whose product takes more than 63 bits */
  fastKronOtherError = 6           /* a device failed, or memory is exhausted */
};

#ifndef __cplusplus
typedef enum fastKronOp fastKronOp;
typedef enum fastKronBackend fastKronBackend;
typedef enum fastKronOptions fastKronOptions;
typedef enum fastKronError fastKronError;
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef void* fastKronHandle;

/* ---- Handles --------------------------------------------------------------------------------------------------- */

/* The version of FastKron whose interface this is, and Mercer's after a plus sign. */
const char* fastKronVersion(void);
const char* fastKronCUDAArchs(void);
/* A sentence for every error, never null. */
const char* fastKronGetErrorString(fastKronError err);
/* fastKronBackend_X86 and fastKronBackend_CUDA, whether or not this machine has a CUDA device. */
uint32_t fastKronGetBackends(void);

/* InvalidArgument, and a null handle, for a backend that Mercer does not have. A handle of CUDA needs no device before
 * it is used. */
fastKronError fastKronInit(fastKronHandle* handle, uint32_t backends);
fastKronError fastKronInitAllBackends(fastKronHandle* handle);
/* A handle is made with UseFusion and without Tune. */
fastKronError fastKronSetOptions(fastKronHandle handle, uint32_t options);
/* Null is let be. */
void fastKronDestroy(fastKronHandle handle);

/* `ptrToStream` points to a cudaStream_t, which is read now; null, and a handle that was never told one, stand for the
 * default stream. */
fastKronError fastKronInitCUDA(fastKronHandle handle, void* ptrToStream);
fastKronError fastKronInitHIP(fastKronHandle handle, void* ptrToStream);
fastKronError fastKronInitX86(fastKronHandle handle);
/* As fastKronInitCUDA, but `ptrToStream` must not be null. X86 has no streams, and lets it be. */
fastKronError fastKronSetStream(fastKronHandle handle, fastKronBackend backend, void* ptrToStream);

/* ---- Sizes ----------------------------------------------------------------------------------------------------- */

/* Elements of Z, and of the largest of X, Z and what lies between them. Products ignore the temporaries that they are
 * handed, so a program that need not run on FastKron may pass null in their place. */
fastKronError gekmmSizes(fastKronHandle handle, uint32_t M, uint32_t N, uint32_t Ps[], uint32_t Qs[], size_t* yElems,
                         size_t* tmpElems);
/* Elements of Z, and of the N - 1 arrays that *Forward keeps. */
fastKronError gekmmSizesForward(fastKronHandle handle, uint32_t M, uint32_t N, uint32_t Ps[], uint32_t Qs[],
                                size_t* resultSize, size_t* intermediateSizes);

/* ---- Products: Z may be Y; Y is needed where beta is not 0 ------------------------------------------------------ */

fastKronError sgemkm(fastKronHandle handle, fastKronBackend backend, uint32_t M, uint32_t N, uint32_t Ps[],
                     uint32_t Qs[], const float* X, fastKronOp opX, const float* const Fs[], fastKronOp opFs, float* Z,
                     float alpha, float beta, const float* Y, float* temp1, float* temp2);
fastKronError dgemkm(fastKronHandle handle, fastKronBackend backend, uint32_t M, uint32_t N, uint32_t Ps[],
                     uint32_t Qs[], const double* X, fastKronOp opX, const double* const Fs[], fastKronOp opFs,
                     double* Z, double alpha, double beta, const double* Y, double* temp1, double* temp2);
fastKronError sgekmm(fastKronHandle handle, fastKronBackend backend, uint32_t N, uint32_t Qs[], uint32_t Ps[],
                     uint32_t M, const float* const Fs[], fastKronOp opFs, const float* X, fastKronOp opX, float* Z,
                     float alpha, float beta, const float* Y, float* temp1, float* temp2);
fastKronError dgekmm(fastKronHandle handle, fastKronBackend backend, uint32_t N, uint32_t Qs[], uint32_t Ps[],
                     uint32_t M, const double* const Fs[], fastKronOp opFs, const double* X, fastKronOp opX, double* Z,
                     double alpha, double beta, const double* Y, double* temp1, double* temp2);

/* Strides are elements from one item of the batch to the next; 0 repeats the one item of X, Y or a factor. */
fastKronError sgemkmStridedBatched(fastKronHandle handle, fastKronBackend backend, uint32_t M, uint32_t N,
                                   uint32_t Ps[], uint32_t Qs[], const float* X, fastKronOp opX, uint64_t strideX,
                                   const float* const Fs[], fastKronOp opFs, uint64_t strideF[], float* Z,
                                   uint64_t strideZ, float alpha, float beta, uint32_t batchCount, const float* Y,
                                   uint64_t strideY, float* temp1, float* temp2);
fastKronError dgemkmStridedBatched(fastKronHandle handle, fastKronBackend backend, uint32_t M, uint32_t N,
                                   uint32_t Ps[], uint32_t Qs[], const double* X, fastKronOp opX, uint64_t strideX,
                                   const double* const Fs[], fastKronOp opFs, uint64_t strideF[], double* Z,
                                   uint64_t strideZ, double alpha, double beta, uint32_t batchCount, const double* Y,
                                   uint64_t strideY, double* temp1, double* temp2);
fastKronError sgekmmStridedBatched(fastKronHandle handle, fastKronBackend backend, uint32_t N, uint32_t Qs[],
                                   uint32_t Ps[], uint32_t M, const float* const Fs[], fastKronOp opFs,
                                   uint64_t strideF[], const float* X, fastKronOp opX, uint64_t strideX, float* Z,
                                   uint64_t strideZ, float alpha, float beta, uint32_t batchCount, const float* Y,
                                   uint64_t strideY, float* temp1, float* temp2);
fastKronError dgekmmStridedBatched(fastKronHandle handle, fastKronBackend backend, uint32_t N, uint32_t Qs[],
                                   uint32_t Ps[], uint32_t M, const double* const Fs[], fastKronOp opFs,
                                   uint64_t strideF[], const double* X, fastKronOp opX, uint64_t strideX, double* Z,
                                   uint64_t strideZ, double alpha, double beta, uint32_t batchCount, const double* Y,
                                   uint64_t strideY, double* temp1, double* temp2);

/* ---- Products that keep what lies between the factors ------------------------------------------------------------
 *
 * Factors are multiplied from the last to the first. Intermediates[i], of N - 1, is what F_(i+1) is multiplied with,
 * counted from 1: F_(i+2) to F_N are in it. Its columns (rows for KMM) have the axes Q_(i+2), ..., QN, P1, ...,
 * P_(i+1), the last of them fastest. */

fastKronError smkmForward(fastKronHandle handle, fastKronBackend backend, uint32_t M, uint32_t N, uint32_t Ps[],
                          uint32_t Qs[], const float* X, fastKronOp opX, const float* const Fs[], fastKronOp opFs,
                          float* Z, float* Intermediates[]);
fastKronError dmkmForward(fastKronHandle handle, fastKronBackend backend, uint32_t M, uint32_t N, uint32_t Ps[],
                          uint32_t Qs[], const double* X, fastKronOp opX, const double* const Fs[], fastKronOp opFs,
                          double* Z, double* Intermediates[]);
fastKronError skmmForward(fastKronHandle handle, fastKronBackend backend, uint32_t N, uint32_t Qs[], uint32_t Ps[],
                          uint32_t M, const float* const Fs[], fastKronOp opFs, const float* X, fastKronOp opX,
                          float* Z, float* Intermediates[]);
fastKronError dkmmForward(fastKronHandle handle, fastKronBackend backend, uint32_t N, uint32_t Qs[], uint32_t Ps[],
                          uint32_t M, const double* const Fs[], fastKronOp opFs, const double* X, fastKronOp opX,
                          double* Z, double* Intermediates[]);

/* With null for strideIntermediates the items of each intermediate are stored one after the other. */
fastKronError smkmForwardStridedBatched(fastKronHandle handle, fastKronBackend backend, uint32_t M, uint32_t N,
                                        uint32_t Ps[], uint32_t Qs[], const float* X, fastKronOp opX, uint64_t strideX,
                                        const float* const Fs[], fastKronOp opFs, uint64_t strideF[], float* Z,
                                        uint64_t strideZ, uint32_t batchCount, float* Intermediates[],
                                        uint64_t strideIntermediates[]);
fastKronError dmkmForwardStridedBatched(fastKronHandle handle, fastKronBackend backend, uint32_t M, uint32_t N,
                                        uint32_t Ps[], uint32_t Qs[], const double* X, fastKronOp opX,
                                        uint64_t strideX, const double* const Fs[], fastKronOp opFs,
                                        uint64_t strideF[], double* Z, uint64_t strideZ, uint32_t batchCount,
                                        double* Intermediates[], uint64_t strideIntermediates[]);
fastKronError skmmForwardStridedBatched(fastKronHandle handle, fastKronBackend backend, uint32_t N, uint32_t Qs[],
                                        uint32_t Ps[], uint32_t M, const float* const Fs[], fastKronOp opFs,
                                        uint64_t strideF[], const float* X, fastKronOp opX, uint64_t strideX, float* Z,
                                        uint64_t strideZ, uint32_t batchCount, float* Intermediates[],
                                        uint64_t strideIntermediates[]);
fastKronError dkmmForwardStridedBatched(fastKronHandle handle, fastKronBackend backend, uint32_t N, uint32_t Qs[],
                                        uint32_t Ps[], uint32_t M, const double* const Fs[], fastKronOp opFs,
                                        uint64_t strideF[], const double* X, fastKronOp opX, uint64_t strideX,
                                        double* Z, uint64_t strideZ, uint32_t batchCount, double* Intermediates[],
                                        uint64_t strideIntermediates[]);

#ifdef __cplusplus
}
#endif

#endif /* MERCER_COMPAT_FASTKRON_H */
