// The memory of Python's objects in a zygote's children.
#pragma once

namespace rocstar {

// Allocates the free blocks of used pages for good, so that each size of Python's small objects starts with a new page.
// For a zygote, before its memory is moved.
void use_up_free_objects();

// Allocates the next small objects from FirstObjects until it is full; then only frees check the owner of a block. For
// a zygote, just before it forks. Has no effect on free-threaded Pythons.
void put_first_objects_together();

}  // namespace rocstar
