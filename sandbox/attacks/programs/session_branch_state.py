# group: sessions
# mode: session
# tries: to change the original from a branch
# breach: the original sees the branch's change
# expect: ok
# output: ready
# held-by: fork
state = ["original"]
print("ready")
# %% branch
# tries: to change the state that was copied
# expect: ok
# output: branch
state[0] = "BREACH: changed by the branch"
print("branch")
# %% cell
# tries: to see the change in the original
# expect: ok
# output: original
print(state[0])
