"""Make the data set `families`: a seeded, invented population over some seven generations.

    python data/make_families.py [--seed 0] [--people 3000] [--out data/families]

writes train.tsv, valid.tsv, test.tsv (head<TAB>relation<TAB>tail), bounds.tsv (relation<TAB>lower<TAB>upper), types.tsv
(entity<TAB>class) and shapes.ttl (bounds of classes, in SHACL). docs/FAMILIES.md describes the result.

All randomness is `Generator.random()` of a PCG64 stream, turned into choices here: NumPy may change
the streams of its other distributions between versions, and the files are to stay the same, byte
for byte. For the same reason nothing iterates over a set.
"""

import argparse
import heapq
import itertools
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

# Per country: cities, the largest first / women's names / men's names / surnames / religions, the
# common ones repeated.
NAMES = {
    "england": """
        london manchester bristol leeds york norwich exeter liverpool / alice anne beatrice
        charlotte clara dorothy edith eleanor elizabeth emily emma florence frances grace hannah
        harriet jane lucy margaret martha mary rose sarah violet / albert alfred arthur benjamin
        charles edmund edward ernest francis frederick george harold henry hugh james john joseph
        nathaniel oliver philip robert samuel thomas william / ashworth barlow bennett brook carter
        clifton dawson ellis fairfax fletcher gibson harding holt hudson kemp langley marsh norris
        osborne palmer pearson ramsey shaw stokes thorne turner walton webb whitaker wood / anglican
        anglican anglican methodist catholic
    """,
    "france": """
        paris lyon marseille bordeaux nantes lille toulouse rouen / adele agathe amelie antoinette
        aurore camille catherine cecile celine colette delphine elise genevieve helene isabelle
        jeanne josephine juliette louise madeleine marguerite odette sophie therese / achille adrien
        antoine armand auguste bastien claude edouard emile etienne eugene fabien gaston guillaume
        henri jacques jules lucien marcel mathieu olivier pascal pierre rene / arnaud barbier
        beaumont bertin blanchard caron chevalier delorme dubois dumas durand faure fontaine gautier
        girard lacroix lambert lefevre marchand mercier moreau perrin renard rousseau roussel simon
        tessier valois vasseur vidal / catholic catholic catholic reformed jewish
    """,
    "germany": """
        berlin hamburg leipzig dresden bremen cologne frankfurt munich / agnes amalia anna bertha
        brigitte christine dorothea elsa erika eva frieda gertrud greta hedwig helga ida johanna
        klara lotte magda mathilde paula ursula wilhelmina / adolf anton bernhard bruno conrad
        dietrich emil ernst felix franz friedrich georg gustav hans heinrich hermann jakob johann
        karl ludwig otto paul rudolf wilhelm / albrecht bauer becker brandt braun fischer hartmann
        hoffmann keller koch kramer lange lorenz maier neumann pfeiffer richter roth schaefer
        schmidt schreiber schulz stein vogel wagner weber werner winkler wolf ziegler / lutheran
        lutheran lutheran catholic catholic jewish
    """,
    "italy": """
        rome milan naples turin genoa florence venice bologna / adriana alessandra angela bianca
        carlotta caterina chiara elena fiorella francesca gabriella giulia isabella laura lucia
        maddalena maria nina ornella paola rosa silvia teresa vittoria / alberto aldo alessandro
        andrea angelo antonio bruno carlo cesare dario enrico federico filippo franco giacomo
        giovanni giuseppe leonardo lorenzo luigi marco matteo paolo stefano / amato barone basile
        bellini bianchi bruni caruso colombo conti costa esposito ferrari fontana galli gentile
        greco leone lombardi mancini marino martini moretti pellegrini ricci rinaldi romano rossi
        serra testa villa / catholic catholic catholic catholic jewish
    """,
    "spain": """
        madrid barcelona seville valencia bilbao granada toledo cadiz / alicia ana beatriz blanca
        carmen catalina clara consuelo dolores elvira emilia esperanza eugenia ines isabel juana
        leonor lucia luisa mercedes pilar ramona soledad teresa / alfonso alonso andres carlos diego
        eduardo enrique felipe fernando francisco gabriel gonzalo hernan ignacio jaime javier
        joaquin jose juan luis manuel miguel pablo rafael / aguilar alvarez blanco calderon campos
        castillo cortes cruz delgado dominguez flores fuentes gallego garrido gomez herrera ibanez
        jimenez leon lozano medina molina navarro ortega prieto ramos reyes rivera santos vega /
        catholic catholic catholic catholic catholic
    """,
    "sweden": """
        stockholm gothenburg malmo uppsala lund kalmar visby falun / agneta alma annika astrid
        birgitta britta cecilia ebba elin elsa frida gunilla hedda hilda ingrid karin kerstin linnea
        maja margareta sigrid signe sofia ulrika / anders arvid axel bengt bertil bjorn carl erik
        fredrik gunnar gustaf hjalmar ivar johan karl lars magnus mats nils olof oskar per sven
        torsten / ahlgren berg bergman blom dahl ek ekstrom falk forsberg hagberg hallberg hedlund
        holm lindberg lindgren lindqvist lund nordin norling nyberg oberg ostman palm sandberg
        sjoberg soderberg strand sundin wallin westman / lutheran lutheran lutheran lutheran
        reformed
    """,
}
# Professions per kind of employer (None: the self-employed); some lean to one gender, as below.
PROFESSIONS = {
    "hospital": "physician nurse surgeon midwife",
    "university": "professor chemist historian astronomer",
    "school": "teacher governess",
    "newspaper": "journalist printer editor",
    "theatre": "actor singer violinist composer",
    "bank": "banker clerk accountant",
    "shipyard": "shipwright engineer carpenter",
    None: "farmer baker tailor weaver blacksmith merchant painter poet lawyer innkeeper",
}
MOSTLY_WOMEN = ["nurse", "midwife", "governess", "weaver", "singer"]
MOSTLY_MEN = ["surgeon", "shipwright", "blacksmith", "engineer", "banker", "carpenter", "lawyer"]
# Children planned by a couple, with weights; the last number is the cap.
FAMILY_SIZES, SIZE_WEIGHTS = [0, 1, 2, 3, 4, 5, 8], [2, 4, 10, 10, 5, 1, 1]
INVERSE = {"parent": "child", "child": "parent", "spouse": "spouse", "sibling": "sibling"}

# True of the whole graph by construction. The lower bound speaks of the relation's domain: people,
# or cities and organisations (located_in); it is 0 if some member of the domain has no such fact.
BOUNDS = {
    "gender": (1, 1),
    "parent": (0, 2),
    "child": (0, FAMILY_SIZES[-1]),
    "spouse": (0, 1),
    "sibling": (0, FAMILY_SIZES[-1] - 1),
    "birthplace": (1, 1),
    "nationality": (1, 2),
    "residence": (0, 2),
    "place_of_death": (0, 1),
    "profession": (0, 3),
    "employer": (0, 1),
    "religion": (0, 1),
    "located_in": (1, 1),
}

# The classes of what may be head and tail of a relation. Everything has one class.
CLASSES = ["person", "city", "country", "organisation", "gender", "religion", "profession"]
DOMAINS = {relation: ["person"] for relation in BOUNDS} | {"located_in": ["city", "organisation"]}
RANGES = {relation: ["person"] for relation in ("parent", "child", "spouse", "sibling")}
RANGES |= {relation: ["city"] for relation in ("birthplace", "residence", "place_of_death")}
RANGES |= {"nationality": ["country"], "employer": ["organisation"], "located_in": ["city", "country"]}
RANGES |= {name: [name] for name in ("gender", "religion", "profession")}
# Bounds of the inverse, true by construction too: the number of heads of a tail, of the range's classes.
INVERSE_BOUNDS = {relation: (0, BOUNDS[inverse][1]) for relation, inverse in INVERSE.items()}
NAMESPACE = "urn:cardkge:"  # of names that are no IRIs, where they are written as IRIs

COUNTRIES = {country: [words.split() for words in text.split("/")] for country, text in NAMES.items()}
CITIES = {city: country for country, words in COUNTRIES.items() for city in words[0]}
KIND_OF = {job: kind for kind, jobs in PROFESSIONS.items() for job in jobs.split()}


class Dice:
    """Choices made from one stream of uniform numbers in [0, 1)."""

    def __init__(self, seed):
        self.random = np.random.Generator(np.random.PCG64(seed)).random

    def chance(self, probability):
        return self.random() < probability

    def between(self, low, high):
        """An integer, low <= i <= high."""
        return low + int(self.random() * (high - low + 1))

    def pick(self, items, weights=None):
        """One of a list, uniformly or in proportion to integer weights."""
        sums = list(itertools.accumulate(weights or [1] * len(items)))
        return items[bisect_right(sums, int(self.random() * sums[-1]))]

    def city(self, country):
        """A city of the country, the earlier in its list the likelier."""
        cities = COUNTRIES[country][0]
        return self.pick(cities, range(len(cities) + 2, 2, -1))


@dataclass(eq=False)
class Person:
    """One person; parents is () for a founder, else (mother, father)."""

    name: str
    gender: str
    born: int
    died: int
    birthplace: str
    parents: tuple
    religion: str
    nationality: list
    professions: list
    home: str  # where the person lives as an adult
    spouse: "Person | None" = None
    children: list = field(default_factory=list)

    def close_kin(self):
        """The person, the parents and the grandparents."""
        return [self, *self.parents, *(g for p in self.parents for g in p.parents)]


class Population:
    """People born, married and dying in order of time, until there are `size` of them."""

    def __init__(self, dice, size):
        self.dice, self.people, self.year = dice, [], 1760
        self.names = Counter()  # how often given_surname was given
        self.events = []  # a heap of (year, number, person to marry or couple to have a child)
        self.numbers = itertools.count()  # events of one year happen in the order planned
        for _ in range(max(2, size // 15)):
            self.founder(dice.between(1760, 1800), dice.city(dice.pick(list(COUNTRIES))))
        while len(self.people) < size:
            if not self.events:  # a tiny population may die out
                self.founder(self.year - 20, dice.city(dice.pick(list(COUNTRIES))))
                continue
            self.year, _, who = heapq.heappop(self.events)
            self.birth(*who) if isinstance(who, tuple) else self.marriage(who)

    def add(self, gender, surname, born, birthplace, parents, religion, nationality, professions):
        """Name the person, decide when to look for a spouse, and register both."""
        dice, country = self.dice, CITIES[birthplace]
        given_names = COUNTRIES[country][1 if gender == "female" else 2]
        taken = [s.name.split("_")[0] for s in parents[0].children] if parents else []
        name = dice.pick([g for g in given_names if g not in taken]) + "_" + surname
        self.names[name] += 1
        if self.names[name] > 1:
            name += f"_{self.names[name]}"
        home = birthplace if dice.chance(0.65) else dice.city(country)
        died = born + dice.between(48, 90)
        person = Person(name, gender, born, died, birthplace, parents, religion, nationality, professions, home)
        self.people.append(person)
        if dice.chance(0.85):
            self.plan(born + dice.between(21, 30), person)
        return person

    def plan(self, year, who):
        """Put an event down for the year, or for now if the year is past."""
        heapq.heappush(self.events, (max(year, self.year), next(self.numbers), who))

    def founder(self, born, birthplace, gender=None, religion=None):
        """Someone whose parents are unknown."""
        country, gender = CITIES[birthplace], gender or self.dice.pick(["female", "male"])
        surname = self.dice.pick(COUNTRIES[country][3])
        religion = religion or self.dice.pick(COUNTRIES[country][4])
        jobs = self.jobs(gender, [])
        return self.add(gender, surname, born, birthplace, (), religion, [country], jobs)

    def jobs(self, gender, inherited):
        """One to three professions, often a parent's."""
        rare = MOSTLY_MEN if gender == "female" else MOSTLY_WOMEN
        jobs = []
        for _ in range(self.dice.pick([1, 2, 3], [14, 5, 1])):
            if inherited and self.dice.chance(0.6):
                job = self.dice.pick(inherited)
            else:
                job = self.dice.pick(list(KIND_OF), [1 if j in rare else 8 for j in KIND_OF])
            if job not in jobs:
                jobs.append(job)
        return jobs

    def marriage(self, person):
        """Find a spouse of about the same age, mostly of the same town and faith, or a newcomer."""
        dice, kin = self.dice, person.close_kin()
        country = CITIES[person.birthplace]

        def appeal(p):
            weight = 8 if p.birthplace == person.birthplace else 1
            weight *= 8 if CITIES[p.birthplace] == country else 1
            return weight * (4 if p.religion == person.religion else 1)

        if person.spouse or person.died <= self.year:
            return
        matches = [
            p
            for p in self.people
            if p.spouse is None
            and p.gender != person.gender
            and abs(p.born - person.born) <= 7
            and p.born + 20 <= self.year < p.died
            and not any(k is m for k in p.close_kin() for m in kin)
        ]
        if not matches or dice.chance(0.3):
            gender = "male" if person.gender == "female" else "female"
            faith = person.religion if dice.chance(0.8) else None
            born = self.year - dice.between(20, 28)
            spouse = self.founder(born, person.birthplace, gender, faith)
        else:
            spouse = dice.pick(matches, [appeal(p) for p in matches])
        person.spouse, spouse.spouse = spouse, person
        wife, husband = (person, spouse) if person.gender == "female" else (spouse, person)
        wife.home = husband.home = dice.pick([husband.home, wife.home], [2, 1])
        if dice.chance(0.04):
            wife.home = husband.home = dice.city(dice.pick(list(COUNTRIES)))
        year = self.year
        for _ in range(dice.pick(FAMILY_SIZES, SIZE_WEIGHTS)):
            year += dice.between(1, 3)
            if year - wife.born <= 45 and year < min(wife.died, husband.died):
                self.plan(year, (wife, husband))

    def birth(self, mother, father):
        """A child, who takes after its parents in most things."""
        dice, home = self.dice, mother.home
        birthplace = home if dice.chance(0.9) else dice.city(CITIES[home])
        gender = dice.pick(["female", "male"])
        surname = father.name.split("_")[1]
        religion = mother.religion if dice.chance(0.9) else father.religion
        nationality = [CITIES[birthplace] if dice.chance(0.85) else father.nationality[0]]
        if mother.nationality[0] not in nationality and dice.chance(0.4):
            nationality.append(mother.nationality[0])
        same, other = (mother, father) if gender == "female" else (father, mother)
        jobs = self.jobs(gender, 2 * same.professions + other.professions)
        parents = (mother, father)
        child = self.add(gender, surname, self.year, birthplace, parents, religion, nationality, jobs)
        mother.children.append(child)
        father.children.append(child)


def facts(dice, population):
    """The whole graph as a list of distinct triples of names, person by person, places last."""
    triples, organisations = [], {}
    for city in CITIES:
        for kind in PROFESSIONS:
            if kind and dice.chance(0.6):
                organisations[city, kind] = f"{kind}_of_{city}"
    for p in population.people:
        about = [("gender", p.gender)]
        about += [("parent", parent.name) for parent in p.parents]
        about += [("child", child.name) for child in p.children]
        about += [("spouse", p.spouse.name)] if p.spouse else []
        if p.parents:
            about += [("sibling", s.name) for s in p.parents[0].children if s is not p]
        about += [("birthplace", p.birthplace)]
        about += [("nationality", country) for country in p.nationality]
        if dice.chance(0.7):
            about += [("religion", p.religion)]
        if p.born + 20 <= population.year:  # grown up
            homes = [p.home]
            if dice.chance(0.12):
                homes.append(dice.city(CITIES[p.home]))
            about += [("residence", city) for city in dict.fromkeys(homes)]
            about += [("profession", job) for job in p.professions]
            employer = organisations.get((p.home, KIND_OF[p.professions[0]]))
            about += [("employer", employer)] if employer else []
        if p.died <= population.year and dice.chance(0.7):
            place = p.home if dice.chance(0.8) else dice.city(CITIES[p.home])
            about += [("place_of_death", place)]
        triples += [(p.name, relation, tail) for relation, tail in about]
    triples += [(city, "located_in", country) for city, country in CITIES.items()]
    employers = {tail for _, relation, tail in triples if relation == "employer"}
    triples += [(name, "located_in", city) for (city, _), name in organisations.items() if name in employers]
    return triples


def split(dice, triples):
    """Train, valid and test, about 85 : 5 : 10.

    A fact that is stated in both directions (parent and child, spouse, sibling) is held out as a
    whole or in one direction, so that half of such held-out triples cannot be found by turning
    round a triple of train. A triple stays in train if one of its entities would be left with
    fewer than three triples there.
    """
    degree = Counter(e for head, _, tail in triples for e in (head, tail))
    where = {}
    for triple in triples:
        if triple in where:
            continue
        head, relation, tail = triple
        unit = [triple]
        held = 0.15
        if relation in INVERSE:
            both = [triple, (tail, INVERSE[relation], head)]
            where.update(dict.fromkeys(both, "train"))
            held = 0.225  # a third of it in both directions: 2 * 0.075 + 0.15 = 2 * 0.15 triples
            unit = dice.pick([both, both[:1], both[1:]])
        name = "train"
        if dice.chance(held) and all(degree[e] - len(unit) >= 3 for e in (head, tail)):
            name = dice.pick(["valid", "test"], [1, 2])
            for e in (head, tail):
                degree[e] -= len(unit)
        where.update(dict.fromkeys(unit, name))
    return {name: [t for t in triples if where[t] == name] for name in ("train", "valid", "test")}


def classes(triples):
    """(entity, class) of every entity, in order of first appearance."""
    found = {}
    for head, relation, tail in triples:
        found.setdefault(head, "person")
        found.setdefault(tail, "person" if RANGES[relation] == ["person"] else RANGES[relation][0])
    found |= {head: "organisation" for head, relation, _ in triples if relation == "located_in"}
    return list((found | dict.fromkeys(CITIES, "city") | dict.fromkeys(COUNTRIES, "country")).items())


def shapes():
    """What bounds.tsv cannot say, as SHACL: bounds of one class, and of the inverse of a relation.

    A class outside a relation's domain has no tails in it, one outside its range no heads. A lower bound in bounds.tsv
    is said of every subject; so what is in domain only of such a relation is left to it.
    """
    yield f"@prefix sh: <http://www.w3.org/ns/shacl#> .\n@prefix : <{NAMESPACE}> .\n"
    for kind in CLASSES:
        properties = []
        for relation, (lower, upper) in BOUNDS.items():
            if kind in DOMAINS[relation]:
                counts = f"sh:minCount {lower} ; " * (lower > 0) + f"sh:maxCount {upper}"
                properties.append(f"[ sh:path :{relation} ; {counts} ]")
            elif lower == 0:
                properties.append(f"[ sh:path :{relation} ; sh:maxCount 0 ]")
        for relation, kinds in RANGES.items():
            upper = INVERSE_BOUNDS.get(relation, (0, None))[1] if kind in kinds else 0
            if upper is not None:
                properties.append(f"[ sh:path [ sh:inversePath :{relation} ] ; sh:maxCount {upper} ]")
        yield f"\n[] a sh:NodeShape ;\n    sh:targetClass :{kind} ;\n    sh:property\n        "
        yield " ,\n        ".join(properties) + " .\n"


def write(path, rows):
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines("\t".join(map(str, row)) + "\n" for row in rows)


def main():
    parser = argparse.ArgumentParser(description="Make the data set `families`.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--people", type=int, default=3000, help="size of the population")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "families")
    options = parser.parse_args()
    if options.seed < 0 or options.people < 2:
        parser.error(f"--seed {options.seed} --people {options.people}: seed >= 0 and people >= 2 are needed")
    dice = Dice(options.seed)
    triples = facts(dice, Population(dice, options.people))
    splits = split(dice, triples)
    options.out.mkdir(parents=True, exist_ok=True)
    for name, part in splits.items():
        write(options.out / f"{name}.tsv", part)
    write(options.out / "bounds.tsv", [(r, *bounds) for r, bounds in BOUNDS.items()])
    write(options.out / "types.tsv", classes(triples))
    (options.out / "shapes.ttl").write_text("".join(shapes()), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
