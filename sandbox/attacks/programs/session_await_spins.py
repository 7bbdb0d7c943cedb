# mypy: ignore-errors
# group: sessions
# mode: session
# tries: to spin inside of an awaited function, past the wall clock of its cell
# breach: the next cell waits for it
# expect: timeout
# output: \A
# held-by: an interrupt that reaches it, or its end
# limits: wall_s=2
async def spin():
    while True:
        pass


await spin()

# %% cell
# tries: to go on
# expect: ok lost
# output: \A
print("HELD: on")
