# group: benign
# tries: nothing bad: text of many scripts, in code and in output
# expect: ok
# output: λ=3 Grüße 你好 \U0001f680 עברית
λ = 3
print(f"{λ=} Grüße 你好 \U0001f680 עברית")
