#include "compact.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory_resource>
#include <string_view>
#include <vector>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace rocstar {
namespace {

constexpr uint64_t kHuge = 2 << 20;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kScratch = 16 << 20;
constexpr uint64_t kMapsText = 4 << 20;
constexpr int kEverything = PROT_READ | PROT_WRITE | PROT_EXEC;
constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

constexpr uint64_t floor_huge(uint64_t at) { return at & ~(kHuge - 1); }
constexpr uint64_t ceil_huge(uint64_t at) { return floor_huge(at + kHuge - 1); }

void* pointer(uint64_t at) { return reinterpret_cast<void*>(at); }
uint64_t address(const void* at) { return reinterpret_cast<uint64_t>(at); }

struct Range {
  uint64_t begin, end;

  uint64_t size() const { return end - begin; }
  bool meets(Range other) const { return begin < other.end && other.begin < end; }
};

struct Mapping : Range {
  bool movable;   // private memory: whoever holds the bytes, nobody sees a difference
  bool readable;  // false: padding between a library's segments
  bool anonymous;
};

// What of a run must be copied; the rest of it reads as zeros afterwards.
struct Run : Range {
  std::pmr::vector<Range> copied;
};

// A mapping of our own for everything below: the heap is what is being moved, so nothing here may be in it.
class Scratch {
 public:
  Scratch() : base_(mmap(nullptr, kScratch, PROT_READ | PROT_WRITE, kPrivate, -1, 0)) {}
  ~Scratch() {
    if (base_ != MAP_FAILED) munmap(base_, kScratch);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  explicit operator bool() const { return base_ != MAP_FAILED; }
  Range range() const { return {address(base_), address(base_) + kScratch}; }
  char* text() const { return static_cast<char*>(base_); }
  void* rest() const { return text() + kMapsText; }

 private:
  void* base_;
};

Mapping parse_mapping(const char* line, Range scratch) {
  unsigned long begin = 0, end = 0, offset = 0, inode = 0;
  char mode[5] = {}, device[16] = {}, name[16] = {};
  std::sscanf(line, "%lx-%lx %4s %lx %15s %lu %15s", &begin, &end, mode, &offset, device, &inode, name);
  // Not the stack, the kernel's own pages, shared memory, and the guards of stacks.
  const bool ours = inode != 0 || name[0] == '\0' || std::strcmp(name, "[heap]") == 0;
  const bool readable = mode[0] == 'r';
  const Range range{begin, end};
  return {range, ours && mode[3] == 'p' && (readable || inode != 0) && !range.meets(scratch), readable, inode == 0};
}

std::pmr::vector<Mapping> read_mappings(const Scratch& scratch, std::pmr::memory_resource* memory) {
  std::pmr::vector<Mapping> found(memory);
  const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) return found;
  char* const text = scratch.text();
  size_t length = 0;
  for (ssize_t got; length < kMapsText - 1 && (got = read(maps, text + length, kMapsText - 1 - length)) > 0;) {
    length += static_cast<size_t>(got);
  }
  close(maps);
  for (size_t at = 0; at < length;) {
    const size_t end = std::string_view(text, length).find('\n', at);
    if (end == std::string_view::npos) break;
    text[end] = '\0';
    found.push_back(parse_mapping(text + at, scratch.range()));
    at = end + 1;
  }
  return found;
}

// Decides which blocks (of a huge page's size) move: those that hold a page in use. A block moves whole, with the
// free space in it, unless it also holds memory that must stay: then only the mappings beside that move.
class Plan {
 public:
  Plan(const Scratch& scratch, std::pmr::memory_resource* memory)
      : memory_(memory), mappings_(read_mappings(scratch, memory)), runs_(memory) {
    pagemap_ = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (pagemap_ < 0) return;
    for (const Mapping& mapping : mappings_) {
      if (!mapping.movable) continue;
      for_pages_in_use(mapping, [this](Range page) { add_block(floor_huge(page.begin)); });
    }
    for (Run& run : runs_) list_copied(run);
    close(pagemap_);
  }

  const std::pmr::vector<Run>& runs() const { return runs_; }
  const std::pmr::vector<Mapping>& mappings() const { return mappings_; }

 private:
  // Pages in memory or swapped out, by their table entries (Documentation/admin-guide/mm/pagemap.rst).
  template <typename Visit>
  void for_pages_in_use(Range range, Visit visit) const {
    std::array<uint64_t, kHuge / kPage> entries;
    for (uint64_t at = range.begin; at < range.end;) {
      const uint64_t count = std::min<uint64_t>(entries.size(), (range.end - at) / kPage);
      const ssize_t wanted = static_cast<ssize_t>(count * sizeof(uint64_t));
      const auto offset = static_cast<off_t>(at / kPage * sizeof(uint64_t));
      const bool known = pread(pagemap_, entries.data(), static_cast<size_t>(wanted), offset) == wanted;
      for (uint64_t i = 0; i < count; ++i, at += kPage) {
        if (!known || entries[i] >> 62 != 0) visit(Range{at, at + kPage});
      }
    }
  }

  void add_block(uint64_t block) {
    if (block == last_block_) return;
    last_block_ = block;
    uint64_t begin = block;
    for (const Mapping& mapping : mappings_) {
      if (mapping.movable || !mapping.meets({block, block + kHuge})) continue;
      add_range({begin, std::max(begin, mapping.begin)});
      begin = mapping.end;
    }
    add_range({begin, std::max(begin, block + kHuge)});
  }

  void add_range(Range range) {
    range = without_rim(range);
    if (range.begin >= range.end) return;
    if (!runs_.empty() && runs_.back().end == range.begin) {
      runs_.back().end = range.end;
    } else {
      runs_.push_back({range, std::pmr::vector<Range>(memory_)});
    }
  }

  // Free space up to a block's own edge is taken (the huge page needs it), up to anything else it is left alone.
  Range without_rim(Range range) const {
    Range kept{range.end, range.begin};
    for (const Mapping& mapping : mappings_) {
      if (!mapping.movable || !mapping.meets(range)) continue;
      kept = {std::min(kept.begin, mapping.begin), std::max(kept.end, mapping.end)};
    }
    if (range.begin % kHuge != 0) range.begin = std::max(range.begin, kept.begin);
    if (range.end % kHuge != 0) range.end = std::min(range.end, kept.end);
    return range;
  }

  void list_copied(Run& run) const {
    const auto add = [&run](Range part) {
      if (!run.copied.empty() && run.copied.back().end == part.begin) {
        run.copied.back().end = part.end;
      } else {
        run.copied.push_back(part);
      }
    };
    for (const Mapping& mapping : mappings_) {
      if (!mapping.movable || !mapping.readable || !mapping.meets(run)) continue;
      const Range part{std::max(mapping.begin, run.begin), std::min(mapping.end, run.end)};
      if (mapping.anonymous) {
        for_pages_in_use(part, add);
      } else {
        add(part);
      }
    }
  }

  std::pmr::memory_resource* memory_;
  std::pmr::vector<Mapping> mappings_;
  std::pmr::vector<Run> runs_;
  int pagemap_ = -1;
  uint64_t last_block_ = 1;
};

// Takes the free space of a run, so that nothing is mapped into it while the run is prepared.
bool reserve_gaps(const Run& run, const std::pmr::vector<Mapping>& mappings) {
  uint64_t free = run.begin;
  const auto reserve = [&free](uint64_t until) {
    if (free >= until) return true;
    void* got = mmap(pointer(free), until - free, PROT_NONE, kPrivate | MAP_FIXED_NOREPLACE, -1, 0);
    return got == pointer(free);
  };
  for (const Mapping& mapping : mappings) {
    if (!mapping.meets(run)) continue;
    if (!reserve(mapping.begin)) return false;
    free = mapping.end;
  }
  return reserve(run.end);
}

// Memory of a run's size that lies in huge pages as the run does; 0 if there is none to be had.
uint64_t map_staging(const Run& run) {
  void* const all = mmap(nullptr, run.size() + kHuge, kEverything, kPrivate, -1, 0);
  if (all == MAP_FAILED) return 0;
  const uint64_t first = address(all), last = first + run.size() + kHuge;
  uint64_t staging = floor_huge(first) + run.begin % kHuge;
  if (staging < first) staging += kHuge;
  if (staging > first) munmap(all, staging - first);
  if (last > staging + run.size()) munmap(pointer(staging + run.size()), last - staging - run.size());
  madvise(pointer(staging), run.size(), MADV_HUGEPAGE);
  return staging;
}

// From the first copied byte to the move nothing but registers, the stack and the staging memory may change: the
// heap, the libraries and this code are what is being replaced.
bool move(const Run& run) {
  const uint64_t staging = map_staging(run);
  if (staging == 0) return false;
  for (const Range& part : run.copied) {
    std::memcpy(pointer(staging + (part.begin - run.begin)), pointer(part.begin), part.size());
  }
  // Where instructions are cached apart from data (arm64) the copied code must become visible to the first.
  __builtin___clear_cache(static_cast<char*>(pointer(staging)), static_cast<char*>(pointer(staging + run.size())));
  void* const moved =
      mremap(pointer(staging), run.size(), run.size(), MREMAP_MAYMOVE | MREMAP_FIXED, pointer(run.begin));
  if (moved == MAP_FAILED) munmap(pointer(staging), run.size());
  return moved != MAP_FAILED;
}

[[maybe_unused]] bool has_one_thread() {
  struct stat status{};
  return stat("/proc/self/task", &status) == 0 && status.st_nlink == 3;  // ".", ".." and the thread's own
}

// A library's function may be looked up at its first call, and its address be noted in memory: too late for one that
// is first called while that memory is replaced.
void bind_functions() {
  volatile size_t one = 1;
  char bytes[2] = {};
  std::memcpy(bytes, bytes + 1, one);
  void* const page = mmap(nullptr, kPage, PROT_READ, kPrivate, -1, 0);
  void* const other = mmap(nullptr, kPage, PROT_READ, kPrivate, -1, 0);
  madvise(page, kPage, MADV_NORMAL);
  mremap(page, kPage, kPage, MREMAP_MAYMOVE | MREMAP_FIXED, other);
  munmap(other, kPage);
}

[[maybe_unused]] uint64_t compact_single_thread() {
  const Scratch scratch;
  if (!scratch) return 0;
  std::pmr::monotonic_buffer_resource memory(scratch.rest(), kScratch - kMapsText, std::pmr::null_memory_resource());
  bind_functions();
  const Plan plan(scratch, &memory);
  for (const Run& run : plan.runs()) {
    if (!reserve_gaps(run, plan.mappings())) return 0;
  }
  uint64_t moved = 0;
  for (const Run& run : plan.runs()) {
    if (move(run)) moved += run.size();
  }
  return moved;
}

// At the end of the heap; more than almost any free block has, less than what is mapped apart.
void have_free_end() {
  constexpr size_t kMuch = 100 << 10;
  for (int round = 0; round < 2; ++round) {
    void* volatile much = std::malloc(kMuch);
    std::free(much);
  }
}

}  // namespace

void use_up_free_memory() {
  have_free_end();  // which sorts what is free as well
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
  constexpr size_t kLarge = 64 << 10, kSmall = 1024, kStep = 16;
  constexpr size_t kNotCounted = 1 << 20;  // blocks that the library keeps apart, as if they were in use
  constexpr size_t kMost = 16 << 20;
  const struct mallinfo2 all = mallinfo2();
  const char* const end = static_cast<const char*>(sbrk(0)) - all.keepcost;
  size_t left = std::min(all.fordblks - all.keepcost + kNotCounted, kMost);
  const auto use_up = [end, &left](size_t size) {
    while (left >= size) {
      void* volatile kept = std::malloc(size);
      if (kept == nullptr) return;
      if (static_cast<const char*>(kept) >= end) {
        if (size > kSmall) std::free(kept);  // a small one would be kept apart
        return;
      }
      left -= size;
    }
  };
  for (size_t size = kLarge; size > kSmall; size /= 2) use_up(size);
  for (size_t size = kSmall; size >= kStep; size -= kStep) use_up(size);
  have_free_end();
#endif
}

uint64_t compact_memory() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 0;  // their shadow memory has an order of its own
#else
  if (sysconf(_SC_PAGESIZE) != static_cast<long>(kPage) || !has_one_thread()) return 0;
  have_free_end();  // which could not grow afterwards: something is mapped behind it
  sigset_t all, before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  const uint64_t moved = compact_single_thread();
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return moved;
#endif
}

}  // namespace rocstar
