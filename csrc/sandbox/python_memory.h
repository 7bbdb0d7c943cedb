// What Python's objects in a zygote's children are made of.
#pragma once

namespace rocstar {

// Leaves each size of Python's small objects a page of its own: what is free of the pages in use, here and there, is
// given to nobody. For a zygote, before its memory is moved.
void use_up_free_objects();

// From now on the first small objects come from FirstObjects, until that is used up; then Python's own way is the only
// one again, but for asking whose a block is that is freed. For a zygote, when it has nothing left to do but fork.
// Nothing is done on Pythons whose objects are made by several threads at a time.
void put_first_objects_together();

}  // namespace rocstar
