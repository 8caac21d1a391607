"""Write a graph like those that people have: `python bench/make_museum.py FOLDER` makes graph.ttl and shapes.ttl.

Painters, their teachers, spouses, towns and movements, their works and the museums that keep them; names as they come
(accents, brackets, commas, apostrophes, two alphabets), labels and years beside the facts, classes below classes, nodes
without a name. One in eight facts is left out at random; --whole writes the whole graph too, to compare.
"""

import argparse
from pathlib import Path

import numpy as np

TOWNS = [
    "Delft",
    "Haarlem",
    "Köln",
    "Sankt-Peterburg",
    "Aix-en-Provence",
    "Firenze",
    "Kraków",
    "München",
    "Πάτρα",
    "Siena",
]
GIVEN = ["Jan", "Maria", "Élisabeth", "Jürgen", "Ilya", "Agnès", "Pieter", "Łucja", "Niccolò", "Νίκος", "Anna", "Paul"]
SURNAMES = ["de_Witt", "O'Hara", "Müller", "Repin", "d'Arc", "van_der_Meer", "Nowak", "Rossi", "Παππάς", "Smith-Jones"]
MOVEMENTS = ["Baroque", "Realism", "Impressionism", "Symbolism", "Art_Nouveau_(Jugendstil)"]
MUSEUMS = ["Gallery_of_{}", "Kunsthalle_{}", "Museo_{},_Ala_Nuova"]
PREFIXES = """\
@prefix : <http://museum.example/id/> .
@prefix v: <http://museum.example/vocabulary#> .
@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
@prefix xsd: <http://www.w3.org/2001/XMLSchema#> .
"""
SHAPES = """\
@prefix sh: <http://www.w3.org/ns/shacl#> .
@prefix v: <http://museum.example/vocabulary#> .

v:PersonShape a sh:NodeShape ;
    sh:targetClass v:Person ;
    sh:property [ sh:path v:bornIn ; sh:minCount 1 ; sh:maxCount 1 ] ;
    sh:property [ sh:path v:marriedTo ; sh:maxCount 1 ] ;
    sh:property [ sh:path v:pupilOf ; sh:maxCount 2 ] ;
    sh:property [ sh:path v:movement ; sh:minCount 1 ; sh:maxCount 2 ] ;
    sh:property [ sh:path v:label ; sh:minCount 1 ] .

v:WorkShape a sh:NodeShape ;
    sh:targetClass v:Work ;
    sh:property [ sh:path v:creator ; sh:minCount 1 ; sh:maxCount 1 ] ;
    sh:property [ sh:path v:keptBy ; sh:minCount 1 ; sh:maxCount 1 ] ;
    sh:property [ sh:path v:bornIn ; sh:maxCount 0 ] .

v:MuseumShape a sh:NodeShape ;
    sh:targetClass v:Museum ;
    sh:property [ sh:path v:town ; sh:minCount 1 ; sh:maxCount 1 ] ;
    sh:property [ sh:path v:creator ; sh:maxCount 0 ] .
"""


def iri(name):
    """An IRI in < >; a museum's name may not be the end of a short name."""
    return f"<http://museum.example/id/{name}>"


def facts(rng, people):
    """(facts, classes): (subject, property, object) names, and subject -> class."""
    found, classes, painters = [], {}, []
    for town in TOWNS:
        classes[town] = "Town"
        for pattern in MUSEUMS[: 1 + rng.integers(3)]:
            museum = pattern.format(town)
            classes[museum] = "Museum"
            found.append((museum, "town", town))
    museums = {town: [s for s, p, o in found if p == "town" and o == town] for town in TOWNS}
    for number in range(people):
        name = f"{rng.choice(GIVEN)}_{rng.choice(SURNAMES)}_({number})"
        town = TOWNS[min(int(rng.exponential(3)), len(TOWNS) - 1)]
        movement = MOVEMENTS[(TOWNS.index(town) + (rng.random() < 0.2)) % len(MOVEMENTS)]
        classes[name] = "Painter" if rng.random() < 0.8 else "Sculptor"
        found += [(name, "bornIn", town), (name, "movement", movement)]
        elders = [other for other in painters[-200:] if other[1] == town]
        if elders and rng.random() < 0.8:
            teacher = elders[rng.integers(len(elders))][0]
            found += [(name, "pupilOf", teacher), (teacher, "teacherOf", name)]
        free = [other for other in elders if not other[2]]
        mate = free[rng.integers(len(free))] if free and rng.random() < 0.5 else None
        painters.append([name, town, mate is not None])
        if mate:
            mate[2] = True
            found += [(name, "marriedTo", mate[0]), (mate[0], "marriedTo", name)]
        for work in range(rng.integers(1, 6)):
            title = f"{'Stillleben' if work % 2 else 'Portrait'}_{number}/{work}"
            kept = museums[town if rng.random() < 0.85 else TOWNS[rng.integers(len(TOWNS))]]
            classes[title] = "Painting"
            found += [(title, "creator", name), (title, "keptBy", kept[rng.integers(len(kept))])]
    return found, classes


def turtle(found, classes, rng):
    """The graph as Turtle."""
    yield PREFIXES
    for kind, above in (("Painter", "Person"), ("Sculptor", "Person"), ("Painting", "Work")):
        yield f"v:{kind} rdfs:subClassOf v:{above} .\n"
    for name, kind in classes.items():
        label = name.replace("_", " ")
        yield f'{iri(name)} a v:{kind} ; v:label "{label}"@en ; v:year "{rng.integers(1600, 1900)}"^^xsd:gYear .\n'
    for subject, name, value in found:
        yield f"{iri(subject)} v:{name} {iri(value)} .\n"
    yield "[] v:bornIn :Delft ; v:movement :Baroque .\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--people", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--whole", action="store_true", help="also write whole.tsv, the facts that were left out too")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    found, classes = facts(rng, options.people)
    kept = [fact for fact in found if rng.random() > 0.125]
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "graph.ttl").write_text("".join(turtle(kept, classes, rng)), encoding="utf-8")
    (options.folder / "shapes.ttl").write_text(SHAPES, encoding="utf-8")
    if options.whole:
        lines = ["\t".join([iri(s), f"<http://museum.example/vocabulary#{p}>", iri(o)]) + "\n" for s, p, o in found]
        (options.folder / "whole.tsv").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
