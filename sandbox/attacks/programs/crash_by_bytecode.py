# mypy: ignore-errors
# group: processes
# tries: instructions that the compiler would never write
# breach: anything but an error or the signal's own status
# expect: signaled error
# output: before
# forbid: after
# held-by: the ending comes from the kernel
import opcode

print("before", flush=True)
code = (lambda: None).__code__
far = bytes((opcode.opmap["EXTENDED_ARG"], 255)) * 2  # a local variable at 128 MiB from the frame
wild = far + bytes((opcode.opmap["LOAD_FAST"], 255, opcode.opmap["RETURN_VALUE"], 0))
print("after", exec(code.replace(co_code=wild)))
