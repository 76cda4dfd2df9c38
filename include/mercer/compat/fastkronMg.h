/* FastKron's functions of several GPUs. Mercer does not serve them: each answers fastKronBackendNotAvailable and
 * touches nothing. */
#ifndef MERCER_COMPAT_FASTKRON_MG_H
#define MERCER_COMPAT_FASTKRON_MG_H

#include "fastkron.h"

#ifdef __cplusplus
#define MERCER_FASTKRON_DEFAULT(value) = value
extern "C" {
#else
#define MERCER_FASTKRON_DEFAULT(value)
#endif

fastKronError fastKronMgInitCUDA(fastKronHandle handle, void* streams, int gpus,
                                 int gpusInM MERCER_FASTKRON_DEFAULT(-1), int gpusInK MERCER_FASTKRON_DEFAULT(-1),
                                 int gpuLocalKrons MERCER_FASTKRON_DEFAULT(-1));
fastKronError fastKronMgSGEMM(fastKronHandle handle, const uint32_t NumKronMats, void* x[], void* kronMats[],
                              void* result[], uint32_t M, uint32_t N, uint32_t K, uint32_t KronMatCols[],
                              uint32_t KronMatRows[], void* temp1[], void* temp2[], void* stream);
fastKronError fastKronMgAllocX(fastKronHandle handle, void* dX[], void* hX, uint32_t M, uint32_t K);
fastKronError fastKronMgGatherY(fastKronHandle handle, void* dY[], void* hY, uint32_t M, uint32_t K,
                                uint32_t NumKronMats, uint32_t KronMatCols[], uint32_t KronMatRows[]);

#ifdef __cplusplus
}
#endif

#endif /* MERCER_COMPAT_FASTKRON_MG_H */
