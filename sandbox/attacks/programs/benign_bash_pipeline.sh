# group: benign
# tries: what a shell program is for: pipes, tools, files, arithmetic, here-documents
# expect: ok
# output: ^6 sorted: apple banana cherry 10$
printf '%s\n' cherry apple banana >list
sort list >sorted
sed -i 's/$/ /' sorted
words=$(tr -d '\n' <sorted)
total=$(awk '{ sum += $1 } END { print sum }' <<<$'1\n2\n3')
mkdir -p a/b && cp list a/b/ && touch a/b/empty && mv a/b/list a/moved
tar -cf box.tar a && mkdir out && tar -xf box.tar -C out
[ "$(cat out/a/moved)" = "$(cat list)" ] || exit 3
ls -l out/a >/dev/null || exit 4
find out -type f -print0 | xargs -0 wc -c >/dev/null || exit 5
diff <(sort list) <(sort -r list | sort) || exit 6
cat <<END
$total sorted: $words$((2 * 5))
END
