import os
import sys
from pathlib import Path

ANSWER = """{"plan":{"layout":"NN","kernels":{"k":{"language":"c","source":"../../etc/passwd","entry":"k"}},
"steps":[{"type":"call","kernel":"k"}]}}"""

with Path(sys.argv[3]).open("wb", 0) as answers:
    answers.write(ANSWER.replace("\n", "").encode() + b"\n")
os._exit(0)
