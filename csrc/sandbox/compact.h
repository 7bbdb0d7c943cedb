// Holds the interpreter's memory in few mappings of huge pages, so that a fork copies almost no page table and the
// child takes no fault for code it only reads.
#pragma once

#include <cstdint>

namespace rocstar {

// Moves private memory (heaps, libraries' code and data) into anonymous huge pages at the same addresses. Call it
// once, with one thread, when nothing more will be loaded. Returns the bytes moved; 0 where it cannot be done (other
// threads, no executable anonymous memory, a sanitizer), and everything then works as before.
//
// A run of mappings becomes one mapping that is readable, writable and executable: with different rights side by
// side a huge page cannot be. That guards nothing here, since every child may map executable memory itself.
uint64_t compact_memory();

// Allocates the C library's free blocks for good, except the end of the heap. Free blocks are scattered: a child that
// allocates ten blocks would change ten pages, and one more for each free block that the library sorts on a large
// allocation. The end of the heap is contiguous. Call it when nothing more will be freed.
void use_up_free_memory();

}  // namespace rocstar
