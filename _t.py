import time, sys
from pathlib import Path
import tempfile
if __name__ == "__main__":
    from tests.engine import test_kill
    f = Path(tempfile.mkdtemp())
    t=time.time(); r = test_kill.Runs(f); print("setup", time.time()-t, r.seconds, r.operations)
    for i in range(3):
        t=time.time(); c,o = r.go_on(f"a{i}"); print(c, time.time()-t); 
    print(o)
