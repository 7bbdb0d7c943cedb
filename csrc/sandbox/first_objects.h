// The allocator of the first small objects of a child, which places them side by side.
//
// Python keeps each size of small objects in pools of 16 KiB of their own, so a print, which needs some twenty sizes,
// changed as many pages. Here sizes share pages: a chunk of 1 KiB is one size's, and the next chunk the next's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>

namespace rocstar {

// Invariants: blocks in use never overlap, are aligned to kStep, and hold what was asked for; a block that was given
// back is the next of its size; when no chunk is left for a size, there is none for it until one is given back.
class FirstObjects {
 public:
  static constexpr size_t kBytes = 64 << 10, kChunk = 1024, kStep = 16, kLargest = 512;

  // Null if it is too large, or there is no room.
  void* take(size_t bytes) {
    if (bytes > kLargest) return nullptr;
    const size_t size = bytes == 0 ? 0 : (bytes - 1) / kStep;
    if (Free* const found = free_[size]) {
      free_[size] = found->next;
      return found;
    }
    const size_t whole = (size + 1) * kStep;
    if (left_[size] < whole && !open_chunk(size)) return nullptr;
    left_[size] = static_cast<uint16_t>(left_[size] - whole);
    return memory_.data() + end_[size] - left_[size] - whole;
  }
  // A block of its own.
  void give(void* block) {
    Free*& first = free_[size_of_[chunk_of(block)]];
    first = new (block) Free{first};
  }
  bool owns(const void* block) const { return offset_of(block) < kBytes; }
  // How many bytes a block of its own has.
  size_t room(const void* block) const { return (size_of_[chunk_of(block)] + size_t{1}) * kStep; }

 private:
  static constexpr size_t kSizes = kLargest / kStep, kChunks = kBytes / kChunk;
  struct Free {
    Free* next;
  };

  uintptr_t offset_of(const void* block) const {
    return reinterpret_cast<uintptr_t>(block) - reinterpret_cast<uintptr_t>(memory_.data());
  }
  size_t chunk_of(const void* block) const { return offset_of(block) / kChunk; }
  bool open_chunk(size_t size) {
    if (chunks_ == kChunks) return false;
    size_of_[chunks_] = static_cast<uint8_t>(size);
    end_[size] = static_cast<uint32_t>(++chunks_ * kChunk);
    left_[size] = kChunk;
    return true;
  }

  // The state of the blocks, in one page with the first of them.
  std::array<Free*, kSizes> free_{};
  std::array<uint32_t, kSizes> end_{};   // of a size's last chunk
  std::array<uint16_t, kSizes> left_{};  // of it
  std::array<uint8_t, kChunks> size_of_{};
  uint32_t chunks_ = 0;
  alignas(kStep) std::array<std::byte, kBytes> memory_;
};

}  // namespace rocstar
