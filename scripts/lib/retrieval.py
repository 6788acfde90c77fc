"""Retrieval from real documents: BM25 over manuals of Debian packages, with questions from their headings."""

import gzip
import math
import re
import statistics
from pathlib import Path

EACH = 8
CHARACTERS = 200


def roff(path):
    """The sections of a manual page: (heading, lines of text)."""
    heading, words = "", []
    with gzip.open(path, "rt", errors="replace") as lines:
        for line in lines:
            if line.startswith((".SH", ".SS")):
                yield heading, words
                heading, words = line[3:].strip().strip('"'), []
            elif line.startswith((".B ", ".I ", ".BR", ".IR", ".TP")) or not line.startswith((".", "'")):
                plain = line.removeprefix(line[:3]) if line.startswith(".") else line
                words.append(re.sub(r"\\f.|\\[&|^c]|\\\(..", "", plain).replace("\\-", "-").strip())
    yield heading, words


def pod(path):
    """The same for Perl's own format."""
    heading, words = "", []
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("=head"):
            yield heading, words
            heading, words = re.sub(r"[A-Z]<+ ?(.*?) ?>+", r"\1", line.split(" ", 1)[-1]), []
        elif not line.startswith("="):
            words.append(re.sub(r"[A-Z]<+ ?(.*?) ?>+", r"\1", line).strip())
    yield heading, words


READ = {".7.gz": roff, ".pod": pod}


def passages(folder):
    """All passages, and the (page, heading) of each."""
    texts, headings = [], []
    for path in sorted(Path(folder).rglob("*")):
        end = next((end for end in READ if path.name.endswith(end) and path.is_file()), None)
        # The history of changes is longer than the manual.
        if end is None or re.match(r"perl\d+delta", path.name):
            continue
        page = path.name[: -len(end)]
        for heading, words in READ[end](path):
            text = re.sub(r"\s+", " ", " ".join(words)).strip()
            for start in range(0, min(len(text), 6 * CHARACTERS), CHARACTERS):
                texts.append(f"{page} {heading}: {text[start:start + CHARACTERS]}")
                headings.append((page, heading))
    return texts, headings


class Bm25:
    def __init__(self, texts, k=1.2, b=0.75):
        self.documents = [re.findall(r"[a-z0-9_]+", text.lower()) for text in texts]
        mean = statistics.mean(map(len, self.documents))
        self.found = {}
        for number, words in enumerate(self.documents):
            for word in set(words):
                count = words.count(word)
                norm = count + k * (1 - b + b * len(words) / mean)
                self.found.setdefault(word, []).append((number, count * (k + 1) / norm))
        total = len(texts)
        self.idf = {w: math.log(1 + (total - len(f) + 0.5) / (len(f) + 0.5)) for w, f in self.found.items()}

    def best(self, question, count):
        scores = {}
        for word in re.findall(r"[a-z0-9_]+", question.lower()):
            for number, score in self.found.get(word, []):
                scores[number] = scores.get(number, 0) + self.idf[word] * score
        return sorted(scores, key=lambda number: (-scores[number], number))[:count]


class Corpus:
    def __init__(self, folder):
        self.texts, self.headings = passages(folder)
        if not self.texts:
            raise SystemExit(f"{folder} has no manual pages of section 7 and no .pod files")
        self.search = Bm25(self.texts)
        self.of_page = {}
        for page, heading in self.headings:
            self.of_page.setdefault(page, set()).add(heading)

    def questions(self, rng, requests):
        """Contexts, and a question for each. How often a page is asked about follows a Zipf law, in a random
        order of the pages. The headings of a page are equally likely."""
        pages = sorted(self.of_page)
        rng.shuffle(pages)
        weights = [1 / (rank + 1) for rank in range(len(pages))]
        contexts, queries = [], []
        while len(contexts) < requests:
            page = rng.choices(pages, weights)[0]
            query = f"{page} {rng.choice(sorted(self.of_page[page]))}"
            context = self.search.best(query, EACH)
            if len(context) == EACH:
                contexts.append(context)
                queries.append(f"Question: what does the manual say of {query}?")
        return contexts, queries
