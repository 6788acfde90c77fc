"""A wheel of programs without Python: the commands go to `bin`, the hook library to
`lib/contextpilot-llama-server`, pages and completions to `share` of the environment.

    wheel.py STAGE VERSION PLATFORM EPOCH README FOLDER

STAGE has the folders bin, lib and share, as they are to be below the environment.
"""

import base64
import hashlib
import os
import sys
import time
import zipfile

NAME = "contextpilot_llama_server"

METADATA = """\
Metadata-Version: 2.4
Name: contextpilot-llama-server
Version: {version}
Summary: Drop-in replacement for llama-server that tells an index the truth about its KV cache
License-Expression: Apache-2.0
Classifier: Environment :: Console
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Rust
Requires-Python: >=3.8
Description-Content-Type: text/markdown

{readme}"""

WHEEL = """\
Wheel-Version: 1.0
Generator: contextpilot-llama-server packaging/wheel.py
Root-Is-Purelib: false
{tags}"""


def contents(stage, version, tags, readme):
    """Of each file: its name in the wheel, its bytes, and whether it is a program."""
    for kind, prefix in (("bin", "scripts"), ("lib", "data/lib"), ("share", "data/share")):
        folder = os.path.join(stage, kind)
        for where, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(where, name)
                inside = os.path.relpath(path, folder)
                with open(path, "rb") as file:
                    yield f"{NAME}-{version}.data/{prefix}/{inside}", file.read(), kind == "bin"
    info = f"{NAME}-{version}.dist-info"
    yield f"{info}/METADATA", METADATA.format(version=version, readme=readme).encode(), False
    yield f"{info}/WHEEL", WHEEL.format(tags="".join(f"Tag: {tag}\n" for tag in tags)).encode(), False


def record(files, version):
    lines = []
    for name, content, _ in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    own = f"{NAME}-{version}.dist-info/RECORD"
    return own, ("".join(lines) + f"{own},,\n").encode(), False


def main():
    stage, version, platform, epoch, readme, folder = sys.argv[1:]
    with open(readme, encoding="utf-8") as file:
        text = file.read()
    tags = [f"py3-none-{one}" for one in platform.split(".")]
    files = sorted(contents(stage, version, tags, text))
    files.append(record(files, version))
    moment = time.gmtime(int(epoch))[:6]
    path = os.path.join(folder, f"{NAME}-{version}-py3-none-{platform}.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, content, program in files:
            entry = zipfile.ZipInfo(name, moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (0o100755 if program else 0o100644) << 16
            wheel.writestr(entry, content)
    print(path)


main()
