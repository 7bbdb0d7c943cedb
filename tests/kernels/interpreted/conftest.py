"""Makes the interpreter of triton 3.6 work with numpy 2.4 and newer, as that of triton 3.7 does.

It converts arrays of one element to an index; numpy 2.4 converts arrays without dimensions only.
"""

from typing import Any

import triton
from triton.runtime import interpreter

if triton.__version__.startswith("3.6."):
    patch_tensor = interpreter._patch_lang_tensor

    def patch_with_index(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patch_with_index
