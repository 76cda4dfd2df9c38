// cpuid and xgetbv. Caches come from leaf 4 (Intel) or 0x8000001D (AMD, same layout), else from sysconf.
#include "core/system/cpu_features.h"
#include "core/system/mutex.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace mercer {
namespace {

#if defined(__x86_64__)

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf leaf(unsigned number, unsigned sub = 0) {
  Leaf r;
  __get_cpuid_count(number, sub, &r.eax, &r.ebx, &r.ecx, &r.edx);  // leaves zeros when the leaf is absent
  return r;
}

bool bit(unsigned word, int index) { return (word >> index & 1u) != 0; }

std::uint64_t read_xcr0() {
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<std::uint64_t>(high) << 32 | low;
}

void detect_model(CpuFeatures& cpu) {
  const Leaf zero = leaf(0), one = leaf(1);
  char name[13] = {};
  std::memcpy(name, &zero.ebx, 4);
  std::memcpy(name + 4, &zero.edx, 4);
  std::memcpy(name + 8, &zero.ecx, 4);
  const std::string vendor = name;
  cpu.vendor = vendor == "AuthenticAMD"   ? CpuVendor::amd
               : vendor == "GenuineIntel" ? CpuVendor::intel
                                          : CpuVendor::other;
  constexpr int kExtended = 15;
  const int family = static_cast<int>(one.eax >> 8 & 15u), model = static_cast<int>(one.eax >> 4 & 15u);
  cpu.family = family == kExtended ? family + static_cast<int>(one.eax >> 20 & 255u) : family;
  cpu.model = family == kExtended || family == 6 ? model + static_cast<int>(one.eax >> 12 & 0xf0u) : model;
}

void detect_instructions(CpuFeatures& cpu) {
  const Leaf one = leaf(1), seven = leaf(7, 0), seven_one = leaf(7, 1);
  const bool has_xgetbv = bit(one.ecx, 27);
  const std::uint64_t saved = has_xgetbv ? read_xcr0() : 0;
  const bool saves_ymm = (saved & 0x6) == 0x6;
  const bool saves_zmm = (saved & 0xe6) == 0xe6;
  cpu.avx2 = saves_ymm && bit(one.ecx, 28) && bit(one.ecx, 12) && bit(one.ecx, 29) && bit(seven.ebx, 5);
  const bool f_dq_bw_vl = bit(seven.ebx, 16) && bit(seven.ebx, 17) && bit(seven.ebx, 30) && bit(seven.ebx, 31);
  cpu.avx512 = cpu.avx2 && saves_zmm && f_dq_bw_vl;
  cpu.avx512_bf16 = cpu.avx512 && bit(seven_one.eax, 5);
  cpu.avx512_vnni = cpu.avx512 && bit(seven.ecx, 11);
  cpu.avx512_fp16 = cpu.avx512 && bit(seven.edx, 23);
  constexpr std::uint64_t kTiles = 0x60000;  // their configuration and their data
  const bool saves_tiles = (saved & kTiles) == kTiles;
  cpu.amx_int8 = cpu.avx512 && saves_tiles && bit(seven.edx, 24) && bit(seven.edx, 25);
}

void detect_caches(CpuFeatures& cpu, unsigned number) {
  for (unsigned sub = 0; sub < 8; ++sub) {
    const Leaf r = leaf(number, sub);
    const unsigned type = r.eax & 31u;  // 0: no more; 1: data; 2: instructions; 3: unified
    if (type == 0) return;
    if (type == 2) continue;
    const std::int64_t line = (r.ebx & 0xfff) + 1, partitions = (r.ebx >> 12 & 0x3ff) + 1, ways = (r.ebx >> 22) + 1;
    const std::int64_t bytes = line * partitions * ways * (static_cast<std::int64_t>(r.ecx) + 1);
    switch (r.eax >> 5 & 7u) {
      case 1: cpu.l1d_bytes = bytes; break;
      case 2: cpu.l2_bytes = bytes; break;
      case 3: cpu.l3_bytes = bytes; break;
      default: break;
    }
  }
}

std::string read_brand() {
  if (leaf(0x80000000u).eax < 0x80000004u) return {};
  char text[49] = {};
  for (unsigned part = 0; part < 3; ++part) {
    const Leaf r = leaf(0x80000002u + part);
    std::memcpy(text + 16 * part, &r, 16);
  }
  std::string brand = text;
  const auto first = brand.find_first_not_of(' '), last = brand.find_last_not_of(' ');
  return first == std::string::npos ? std::string{} : brand.substr(first, last - first + 1);
}

#endif

/// Hypervisors sometimes hide the caches; these are the smallest sizes of the last ten years' servers.
void fill_gaps(CpuFeatures& cpu) {
  const auto fill = [](std::int64_t& bytes, int name, std::int64_t least) {
    if (bytes <= 0) bytes = ::sysconf(name);
    if (bytes <= 0) bytes = least;
  };
  fill(cpu.l1d_bytes, _SC_LEVEL1_DCACHE_SIZE, std::int64_t{32} << 10);
  fill(cpu.l2_bytes, _SC_LEVEL2_CACHE_SIZE, std::int64_t{512} << 10);
  fill(cpu.l3_bytes, _SC_LEVEL3_CACHE_SIZE, std::int64_t{8} << 20);
  if (cpu.brand.empty()) cpu.brand = "unknown processor";
}

}  // namespace

CpuFeatures detect_cpu() {
  CpuFeatures cpu;
#if defined(__x86_64__)
  detect_model(cpu);
  detect_instructions(cpu);
  detect_caches(cpu, 4);
  if (cpu.l1d_bytes == 0 && bit(leaf(0x80000001u).ecx, 22)) detect_caches(cpu, 0x8000001du);
  cpu.brand = read_brand();
#endif
  fill_gaps(cpu);
  return cpu;
}

const CpuFeatures& cpu_features() {
  static constinit Lazy<CpuFeatures> features;
  return features.get(detect_cpu);
}

std::string CpuFeatures::to_text() const {
  std::string sets;
  const auto add = [&](bool has, const char* name) {
    if (has) sets += fmt::format(" {}", name);
  };
  add(avx2, "avx2");
  add(avx512, "avx512");
  add(avx512_bf16, "avx512_bf16");
  add(avx512_vnni, "avx512_vnni");
  add(avx512_fp16, "avx512_fp16");
  add(amx_int8, "amx_int8");
  return fmt::format("{};{}; L1d {} KiB, L2 {} KiB, L3 {} KiB", brand, sets.empty() ? " no vector set known" : sets,
                     l1d_bytes >> 10, l2_bytes >> 10, l3_bytes >> 10);
}

}  // namespace mercer
