# group: benign
# tries: to read its input line by line, and to fail with a code of its own
# expect: error
# output: \d+ characters
# stdin: facts
read -r line
echo "${#line} characters"
exit 3
