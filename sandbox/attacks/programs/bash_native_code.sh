# group: syscalls
# tries: eighty system calls by native code that a tool of its own loads: other groups, memory, sockets, the lifeline
# breach: one of them succeeds
# expect: ok
# output: HELD: [1-9]
# held-by: seccomp, notify
# needs: x86_64
: <<'SOURCE'
/* gcc -Os -fPIC -shared -nostdlib -s -fno-asynchronous-unwind-tables \
       -Wl,-init=begin,-z,norelro,-z,noseparate-code,--build-id=none,--hash-style=gnu */
static long ask(long n, long a, long b, long c, long d, long e) {
  register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
  __asm__ volatile("syscall" : "+a"(n) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
  return n;
}
enum { LIFE = 250, ROOM = 0x7001, PARENT, GROUP };
/* number and arguments; ROOM, PARENT and GROUP stand for what is known only then */
static const int kTried[][6] = {
    {112}, {109}, {157, 36, 1}, {157, 1},
    {157, 4, 1},                      /* setsid setpgid prctl: subreaper, death, dumpable */
    {56, 0x8011}, {56, 0x10000011}, {56, 0x20000011}, {56, 0x40000011},     /* clone: parent, user, pid, net */
    {3, LIFE}, {33, 0, LIFE}, {33, LIFE, 9}, {292, 0, LIFE, 0}, {32, LIFE}, /* close dup2 dup3 dup */
    {72, LIFE, 4, 0}, {72, LIFE, 8, 0}, {72, LIFE, 10, 0}, {72, LIFE, 2, 1}, {72, LIFE, 0, 0}, {72, LIFE, 1030, 0},
    {16, LIFE, 0x5451}, {16, LIFE, 0x5452, ROOM}, {48, LIFE, 2}, {1, LIFE, ROOM, 1}, {20, LIFE, ROOM, 1},
    {44, LIFE, ROOM, 1}, {46, LIFE, ROOM}, {40, LIFE, 0, 0, 1}, {275, 0, 0, LIFE, 0, 1}, {436, LIFE, LIFE},
    {436, 3, 4095},
    {72, 0, 8, PARENT}, {72, 0, 10, 9}, {72, 1, 1031, 1 << 20}, {72, 0, 1033, 1},
    {72, 0, 1024, 0}, /* fcntl: own, signal, pipe, seals, lease */
    {9, 0, 4096, 3, 0x21, -1}, {29, 0, 4096, 0x3ff}, {319, ROOM, 0}, {53, 1, 1, 0, ROOM},
    {53, 1, 2, 0, ROOM}, /* memory, pairs */
    {41, 1, 1}, {41, 2, 1}, {41, 10, 2}, {41, 16, 3},
    {41, 40, 1},          /* sockets: unix, inet, inet6, netlink, vsock */
    {62, PARENT, 0}, {62, -1, 0}, {62, 0, 0}, {62, GROUP, 0}, {62, 1, 0}, {200, PARENT, 0}, {234, PARENT, PARENT, 0},
    {129, PARENT, 0, ROOM}, {434, PARENT}, {222, 0, ROOM, ROOM},
    {240, ROOM, 66, 384, 0}, /* signals, timers, queues */
    {144, 0, 1, ROOM}, {141, 0, 0, -5}, {203, 0, 8, ROOM}, {314, 0, ROOM},
    {251, 1, 0, 0}, /* others' processor and disk */
    {302, 0, 6, ROOM}, {160, 6, ROOM}, {135, 0x0040000}, {306, 0}, {322, -100, ROOM, 0, 0, 0},
    {133, ROOM, 0x1180, 0}, {86, ROOM, ROOM}, {88, ROOM, ROOM}, {188, ROOM, ROOM, ROOM, 1}, {254},
    {303, -100, ROOM, ROOM, ROOM},
    {117, 0, 0, 0}, {106, 0}, {161, ROOM}, {126, ROOM, ROOM}, {31, 0, 0, 0}, {68, 5, 0x3ff}, {64, 5, 1, 0x3ff}};

static void say(const char *word, long length, long number) {
  char text[32];
  long i = 0, k = 0;
  char digits[8];
  for (; i < length; ++i) text[i] = word[i];
  do digits[k++] = (char)('0' + number % 10), number /= 10; while (number);
  while (k) text[i++] = digits[--k];
  text[i++] = '\n';
  ask(1, 1, (long)text, i, 0, 0);
}

void begin(void) {
  static char room[256] = "own-name";
  const long leader = ask(111, 0, 0, 0, 0, 0), own = ask(39, 0, 0, 0, 0, 0), group = -leader;
  const long parent = leader == own ? ask(110, 0, 0, 0, 0, 0) : 1; /* whose parent is none of its own */
  const int number = sizeof kTried / sizeof kTried[0];
  for (int i = 0; i < number; ++i) {
    long a[6];
    for (int k = 0; k < 6; ++k) {
      const int word = kTried[i][k];
      a[k] = word == ROOM ? (long)room : word == PARENT ? parent : word == GROUP ? group : word;
    }
    if (a[0] == 292 || a[0] == 117) a[4] = 0;
    const long got = ask(a[0], a[1], a[2], a[3], a[4], a[5]);
    if (a[0] == 56 && got == 0) ask(231, 0, 0, 0, 0, 0);
    if (got >= 0) say("BREACH: call ", 13, i);
  }
  say("HELD: ", 6, number);
}
SOURCE
base64 -d <<'END' | gzip -d >code.so
H4sIAAAAAAACA+WXX2gcRRjAZ2/vT3JJvUYjTdXiCVuaULPeRQsxmHrX3NW5di1tvRRBq1ySs4n07mKyhymITThisx4HvgoKEXzz
TXw4YylXW9tixT95qFVEoiBqUqEiWhNp1pnLTG52bqbxQXzxI5dv9/d93/z55tvZ2ZNxY69LUQAVFewGtTsAIkQHN7GsG7jR/ybg
r/p6gFwW/E4NNq8pHOdl7Xc5dUVxahrn2igOOHUD0Yd+MIe84J8L6a7an8KMF8kkmvx6jpZObQ/cqh3sdzsKuEkCOmngQPrYSBYk
rBVofW6UDG3B+jVhXTeszwzrCnz9t7ffxxOEN5YLH4ZmktrVORwHpytmS6ESmsOjmolpX5Ux3V9qVqD9MbTPRl41W69GZl6w4fR8
/tq+UhK4oLIQD88b1qfRCzHwnb8aEA9XoHUx4DkXPRKej+O/SrS/nMMdWF9C60o02f8ELFwLBTwJ62x5B+IBz+PWJx/g2MSNb4yH
L+X95WwVQ+ucUdq1BVnCvxilzgNb0UUlWmx+xbAWp5aVUQDMrdD6emrZhS9vM6zvp5ZVfKnCwS+g1Xoe2hVY+NObvwyLbg32aqgl
cxMiedNnFJNacEnFwy/GtHaIbttg0dQ2w+JLWgPqu/CI1p2/ByUlv4XOo/zj+iwCniUPsk20QmvxDK5eWOo9gNRPM6u2De2PEoUL
bbBw82Bgep+NQOF8aO4gMp/Bq/wU8g0hfTT6dPRo9Jmf+1GIeH33HI5H+2BPcDB1/HgQwLgR6wmy9lFJXWQk/E300wBwPIOUKxJ/
t8DWjX4tk/X+VV4rb54HJTzCcxX9VgTjuY/oFQHHrJHjmiL2D0rah4S7JbxBwv0S7uJyBzfo1+uu3ycwP5QU88OIK0wRhJh++X0C
c+zLjqdVwu+XcJ3hrLRz86IxdzDBK4ztPWXtns8F5njt7UB9fuh+6xqt535u7SHpx+dmd9uaf6O7fl2qwuW/kUm4SuoMPc72Nobb
as3/UaU+N1h2Mfs8YPJHuYvjHZw/lQ5BTVHuF6x7B5m9KuDtgnZ2c/llOZ63iIsEc1XSjmifuSTpd5Fw3jbF+LP5flcRt/Mtk1/W
/zphe/CLlxnYa0ytsv4lps2/mHxcZuqT9e9R6sdYjZXkQSfQy8XMChiWU6KiRdKlSN4niL+Bxs23M03anmxx8iOCnGF5UsJPM5zd
O1YldfIAMx62vbzE/3kJfwuIn7uXJeO8V9JOjJw3be6BiRCucLZmoun56/dVO1d9v5B7enadYNa1ut8otX0Li4/oJqLbwH8juRez
ndlUJg3+p/JYX19PsD2WHhhJZYPhLr1LD3WGH9o5lB4Id+XDHQSh53J8eNwcM1MDQD+WzevDqfFhoA+dyI6fyKxpcwzoZnrCBPpY
bihlpoCeHn72uTGcWmxPZUYG0UXVMJjLZNJZ818ZP66XP2w7R/d9WndUa8x3BhCcX+4kbbi4uqQ6xJzHFCae1uc2YnNxdU61T3AO
YWW789sHnFSc+h3l1vE7ufdnRHXqWV/9uY+VB7n4uu9JTvj89ZKx0y1h/XvR7/xOVLl4eiLZS/qn9tm7iW4ST5gfv0FcQhyfJRvT
Dkn+Wa0K5nmRxPdvsH5/A7isRuvgDwAA
END
LD_PRELOAD="$PWD/code.so" /bin/true
enable -f "$PWD/code.so" nothing 2>/dev/null
: done
