import os
import sys

ANSWER = """{"plan":{"layout":"NN","kernels":{"k":{"language":"c","source":"../../etc/passwd","entry":"k"}},
"steps":[{"type":"call","kernel":"k"}]}}"""

with open(sys.argv[3], "wb", 0) as answers:
    answers.write(ANSWER.replace("\n", "").encode() + b"\n")
os._exit(0)
