#include "python_memory.h"

#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "first_objects.h"

namespace rocstar {

void use_up_free_objects() {
  // obmalloc.c: objects of a size lie together in pools, which begin with what is known of the pool.
  constexpr size_t kLargest = 512, kStep = 16, kPool = 16 << 10, kHead = 48;
  constexpr size_t kMost = 4 << 20;  // in all, should another version have other pools
  size_t used = 0;
  for (size_t size = kStep; size <= kLargest; size += kStep) {
    const void* block = nullptr;
    do {
      block = PyObject_Malloc(size);
      used += size;
    } while (block != nullptr && reinterpret_cast<uintptr_t>(block) % kPool != kHead && used < kMost);
  }
}

// Interpreters of later versions may have locks of their own each, and share this.
#if PY_VERSION_HEX < 0x030c0000

namespace {

alignas(4096) FirstObjects first;
PyMemAllocatorEx own;  // Python's, of both domains

void end();

void* take(size_t bytes) {
  void* const block = first.take(bytes);
  if (block == nullptr && bytes <= FirstObjects::kLargest) end();
  return block;
}

void* make(void*, size_t bytes) {
  void* const block = take(bytes);
  return block != nullptr ? block : own.malloc(own.ctx, bytes);
}

void* make_zeros(void*, size_t count, size_t bytes) {
  void* const block = take(count * bytes);  // which the caller has seen to be no more than there is
  return block != nullptr ? std::memset(block, 0, count * bytes) : own.calloc(own.ctx, count, bytes);
}

void free(void*, void* block) {
  if (first.owns(block)) {
    first.give(block);
  } else {
    own.free(own.ctx, block);
  }
}

void* resize(void* context, void* block, size_t bytes) {
  if (!first.owns(block)) return block == nullptr ? make(context, bytes) : own.realloc(own.ctx, block, bytes);
  const size_t room = first.room(block);
  if (bytes <= room && bytes * 4 > room) return block;  // a much smaller one would be kept for too little
  void* const moved = make(context, bytes);
  if (moved == nullptr) return bytes <= room ? block : nullptr;
  std::memcpy(moved, block, std::min(bytes, room));
  first.give(block);
  return moved;
}

void use(PyMemAllocatorEx allocator) {
  PyMem_SetAllocator(PYMEM_DOMAIN_OBJ, &allocator);
  PyMem_SetAllocator(PYMEM_DOMAIN_MEM, &allocator);
}

// A size has no room left: what is made from now on is made as ever.
void end() {
  PyMemAllocatorEx now;
  PyMem_GetAllocator(PYMEM_DOMAIN_OBJ, &now);
  if (now.malloc == make) use({own.ctx, own.malloc, own.calloc, resize, free});
}

}  // namespace

void put_first_objects_together() {
  PyMemAllocatorEx mem;
  PyMem_GetAllocator(PYMEM_DOMAIN_OBJ, &own);
  PyMem_GetAllocator(PYMEM_DOMAIN_MEM, &mem);
  if (mem.malloc != own.malloc || mem.ctx != own.ctx) return;  // somebody watches one of them
  use({nullptr, make, make_zeros, resize, free});
}

#else

void put_first_objects_together() {}

#endif

}  // namespace rocstar
