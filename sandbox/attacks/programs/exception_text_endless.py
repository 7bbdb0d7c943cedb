# group: cpu
# tries: an exception whose text takes for ever to write
# breach: no end by the wall clock
# expect: timeout
# output: raising
# held-by: wall clock
# limits: wall_s=1
class Endless(Exception):
    def __str__(self) -> str:
        while True:
            pass


print("raising")
raise Endless
