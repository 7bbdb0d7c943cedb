# group: persistence
# tries: to leave a module for later imports: in the path cache, in the finders, as a file
# breach: see the next call
# expect: ok
# output: tried
# held-by: fork
import sys
import types


class Finder:
    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        print(f"BREACH: asked for {name}")


sys.meta_path.insert(0, Finder)
sys.path_importer_cache.clear()
sys.path_hooks.clear()
sys.modules["csv"] = types.ModuleType("csv")
print("tried")
# %% call
# tries: to import with a clean machinery
# expect: ok
# output: HELD
import csv
import wave

print("HELD" if hasattr(csv, "reader") and hasattr(wave, "open") else "BREACH: a planted module")
