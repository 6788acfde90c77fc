"""What the programs are made of: a bill of materials (CycloneDX 1.5, JSON) and the licences of all
that is in it, both from `cargo metadata`, which follows Cargo.lock.

    bill.py TARGET EPOCH SBOM LICENCES
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.parse
import uuid

ROOTS = ("contextpilot-llama-server", "contextpilot-hook")


def metadata(target):
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def linked(data):
    """The packages that end up in the programs, and of each those that it uses: without what only
    tests and build scripts need."""
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    packages = {package["id"]: package for package in data["packages"]}
    uses = {}
    rest = [one for one in packages if packages[one]["name"] in ROOTS]
    while rest:
        one = rest.pop()
        if one in uses:
            continue
        needed = nodes[one]["deps"]
        uses[one] = sorted(
            dep["pkg"] for dep in needed if any(kind["kind"] is None for kind in dep["dep_kinds"])
        )
        rest.extend(uses[one])
    procedural = lambda one: any("proc-macro" in target["kind"] for target in packages[one]["targets"])
    kept = {one for one in uses if not procedural(one)}
    return packages, {one: [dep for dep in uses[one] if dep in kept] for one in kept}


def reference(package):
    return f"pkg:cargo/{urllib.parse.quote(package['name'])}@{package['version']}"


def checksums():
    """Of each package from a registry, as Cargo.lock has it."""
    with open("Cargo.lock", encoding="utf-8") as file:
        blocks = file.read().split("[[package]]")[1:]
    found = {}
    for block in blocks:
        values = dict(re.findall(r'^(name|version|checksum) = "(.*)"$', block, re.M))
        if "checksum" in values:
            found[values["name"], values["version"]] = values["checksum"]
    return found


def component(package, sums):
    entry = {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "purl": reference(package),
    }
    if package.get("license"):
        entry["licenses"] = [{"expression": " OR ".join(re.split(r" */ *", package["license"]))}]
    known = sums.get((package["name"], package["version"]))
    if known:
        entry["hashes"] = [{"alg": "SHA-256", "content": known}]
    return entry


def bill(packages, uses, epoch):
    sums = checksums()
    order = sorted(uses, key=lambda one: reference(packages[one]))
    root = next(one for one in order if packages[one]["name"] == ROOTS[0])
    body = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
            "component": component(packages[root], sums) | {"type": "application"},
        },
        "components": [component(packages[one], sums) for one in order if one != root],
        "dependencies": [
            {
                "ref": reference(packages[one]),
                "dependsOn": sorted(reference(packages[dep]) for dep in uses[one]),
            }
            for one in order
        ],
    }
    # The same content, the same number.
    content = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).digest()
    body["serialNumber"] = f"urn:uuid:{uuid.UUID(bytes=content[:16], version=4)}"
    return body


def licence_texts(package):
    folder = os.path.dirname(package["manifest_path"])
    words = ("licen", "copying", "notice", "copyright")
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if name.lower().startswith(words) and os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                yield file.read().strip() + "\n"


def licences(packages, uses):
    """Each text once, after the packages that come with it."""
    texts, without = {}, []
    for one in sorted(uses, key=lambda one: reference(packages[one])):
        package = packages[one]
        if package["source"] is None:
            continue
        name = f"{package['name']} {package['version']} ({package.get('license') or 'see its text'})"
        found = False
        for text in licence_texts(package):
            texts.setdefault(text, []).append(name)
            found = True
        if not found:
            without.append(name)
    rule = "-" * 80 + "\n"
    out = "What contextpilot-llama-server is linked with, and on what terms.\n\n"
    for text, names in sorted(texts.items(), key=lambda item: item[1]):
        out += rule + "".join(f"{name}\n" for name in names) + rule + text + "\n"
    if without:
        out += rule + "Without a text of their own:\n" + "".join(f"{name}\n" for name in without)
    return out


def main():
    target, epoch, sbom, texts = sys.argv[1:]
    packages, uses = linked(metadata(target))
    with open(sbom, "w", encoding="utf-8") as file:
        json.dump(bill(packages, uses, int(epoch)), file, indent=1)
        file.write("\n")
    with open(texts, "w", encoding="utf-8") as file:
        file.write(licences(packages, uses))


main()
