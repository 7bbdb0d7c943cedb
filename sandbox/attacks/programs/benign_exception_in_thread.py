# group: benign
# tries: nothing bad: an exception in a thread, which does not end the program
# expect: ok
# output: (?s)main goes on.*ValueError: in a thread
import threading


def fail() -> None:
    raise ValueError("in a thread")


thread = threading.Thread(target=fail)
thread.start()
thread.join()
print("main goes on")
