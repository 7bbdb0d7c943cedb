# group: persistence
# tries: to leave a word for the next program, in files and in processes
# breach: the next one finds it
# expect: ok
# output: HELD: left
# held-by: a scratch directory per call
echo word >.bashrc
echo word >~/.bash_profile
mkdir -p deep/er && echo word >deep/er/file
(while :; do echo word >here; sleep 0.05; done) &
sleep 0.2
echo "HELD: left"
# %% call
# tries: to find it
# expect: ok
# output: HELD: 0
found=$(find . -type f | wc -l)
((found == 0)) || echo "BREACH: $(find . -type f)"
sleep 0.3
[ -e here ] && echo "BREACH: it is still written"
echo "HELD: $found"
