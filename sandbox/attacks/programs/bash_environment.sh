# group: secrets
# tries: to find the trainer's secrets among its variables
# breach: one is there
# expect: ok
# output: HELD: PATH
# forbid: swordfish|BAIT
# held-by: an environment of its own
env
set
echo "HELD: PATH=$PATH"
