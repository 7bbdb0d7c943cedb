# group: cpu
# tries: a finaliser that never returns
# breach: no end by the wall clock
# expect: timeout
# output: finaliser
# held-by: wall clock
# limits: wall_s=1
class Stay:
    def __del__(self) -> None:
        print("finaliser")
        while True:
            pass


stay = Stay()
del stay
