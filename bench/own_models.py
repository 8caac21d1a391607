"""TransE, RESCAL and HolE of the course beside PyKEEN's, from the same start with the same settings.

    python bench/own_models.py [--data families] [--dim 50] [--epochs 50] [--seeds 3] [--models transe,rescal,hole]
    python bench/own_models.py --controls --models hole      # the regulariser with right, wrong and no bounds

The first needs the extra `peers`. Both start from the same parameters and take the same number of epochs, of ten
batches, with two negatives, the logistic loss (summed), AdaGrad (rate 0.1, accumulators from 0.1), no regulariser and
no projection. Batches and negatives are drawn apart (PyKEEN corrupts head or tail at random, cardkge one of each).
PyKEEN's trained parameters are then copied back and ranked by the same program, after its scores have been found equal.
The table has means and standard deviations over the seeds, in percent: filtered, test, ties by the mean rank.

The controls are those of `python cli.py reproduce controls`: the regulariser's settings for free embeddings, with mined
bounds, those of another relation, and [0, 0]; extra negatives; L2 alone, of three weights the one with the best hits@10
on valid.
"""

import argparse
import dataclasses
import logging
import os
import sys
import time
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from tabulate import tabulate  # noqa: E402

import cardkge  # noqa: E402
from cardkge_tools.experiments.reproduction import control_options, wrong_bounds  # noqa: E402
from cardkge_tools.shell.download import PROJECT_DATA  # noqa: E402
from cardkge_tools.shell.files import read_json  # noqa: E402

FIELDS = {"lambda": "penalty_weight"}  # of Settings, where an option has another name
CLASSES = {"transe": "TransE", "rescal": "RESCAL", "hole": "HolE"}


def settings_of(name, arguments, seed):
    model = cardkge.use_model(str(ROOT / "course" / "solutions" / f"{name}.py") + f":{CLASSES[name]}")
    return cardkge.Settings(
        model=model, data=arguments.data, dim=arguments.dim, epochs=arguments.epochs, project="none", seed=seed
    )


def tables_of(peer):
    """PyKEEN's parameters: (entity rows, relation rows), tensors."""
    return [part[0]._embeddings.weight.data for part in (peer.entity_representations, peer.relation_representations)]


def train_peer(name, run, dataset, epochs, seed):
    """Trains PyKEEN's model from the parameters of run; returns a model of ours with its trained parameters."""
    import torch
    from pykeen import models
    from pykeen.losses import SoftplusLoss
    from pykeen.training import SLCWATrainingLoop
    from pykeen.triples import CoreTriplesFactory

    torch.manual_seed(seed)
    train = torch.as_tensor(dataset.train.astype(np.int64))
    factory = CoreTriplesFactory(train, num_entities=dataset.n_entities, num_relations=dataset.n_relations)
    options = {
        "transe": {"scoring_fct_norm": 2, "entity_constrainer": None, "regularizer": None},
        "rescal": {"regularizer": None},
        "hole": {"entity_constrainer": None},
    }[name]
    peer = getattr(models, CLASSES[name])(
        triples_factory=factory,
        embedding_dim=run.model.dim,
        loss=SoftplusLoss(reduction="sum"),
        random_seed=seed,
        **options,
    )
    peer.reset_parameters_ = lambda: peer  # the training loop would draw new ones
    names = "entity", "relation"
    for table, key in zip(tables_of(peer), names):
        table[...] = torch.as_tensor(run.model.params[key]).reshape(table.shape)
    sample = dataset.train[:64]
    theirs = peer.score_hrt(torch.as_tensor(sample.astype(np.int64))).detach().numpy().ravel()
    np.testing.assert_allclose(run.model.score(*sample.T), theirs, rtol=1e-3, atol=1e-4)
    loop = SLCWATrainingLoop(
        model=peer, triples_factory=factory, optimizer="adagrad",
        optimizer_kwargs={"lr": 0.1, "initial_accumulator_value": 0.1}, negative_sampler="basic",
        negative_sampler_kwargs={"num_negs_per_pos": 2}, automatic_memory_optimization=False,
    )  # fmt: skip
    size = -(-len(train) // 10)
    loop.train(factory, num_epochs=epochs, batch_size=size, num_workers=0, pin_memory=False, use_tqdm=False)
    model = type(run.model)(dataset.n_entities, dataset.n_relations, dim=run.model.dim, dtype="float32")
    for table, key in zip(tables_of(peer), names):
        model.params[key][...] = table.numpy().reshape(model.params[key].shape)
    return model


def row(who, values, *more):
    """A line of the table: values (seeds, metrics)."""
    return [*who, *(f"{m:.2f} ± {s:.2f}" for m, s in zip(np.mean(values, 0), np.std(values, 0))), *more]


def figures(model, dataset, split="test"):
    both = cardkge.evaluate(model, getattr(dataset, split), dataset.known)["filtered"]["both"]
    return [100 * both[name] for name in ("mrr", "hits@1", "hits@10")]


def peer_rows(name, arguments, dataset):
    """Ours and PyKEEN's."""
    found = {"cardkge": [], "PyKEEN": []}
    seconds = dict.fromkeys(found, 0.0)
    for seed in range(arguments.seeds):
        run = cardkge.new_run(settings_of(name, arguments, seed), dataset)
        began = time.perf_counter()
        theirs = train_peer(name, run, dataset, arguments.epochs, seed)
        seconds["PyKEEN"] += time.perf_counter() - began
        began = time.perf_counter()
        cardkge.train(run, dataset)
        seconds["cardkge"] += time.perf_counter() - began
        for who, model in (("cardkge", run.model), ("PyKEEN", theirs)):
            found[who].append(figures(model, dataset))
    return [row((CLASSES[name], who), found[who], f"{seconds[who] / arguments.seeds:.0f}") for who in found]


def control_rows(name, arguments, dataset):
    """The model without and with the regulariser, whose bounds are right and wrong."""
    regulariser = read_json(PROJECT_DATA / "reproduction.json")["unprojected"]
    mined = cardkge.mine_bounds(dataset.train, dataset.n_entities, dataset.n_relations)
    given = {"mined": mined} | wrong_bounds(mined)
    rows, decayed = [], {}
    for control, options in control_options(dict.fromkeys(given, "none"), regulariser).items():
        fields = {FIELDS.get(option, option.replace("-", "_")): value for option, value in options.items()}
        found, valid, began = [], [], time.perf_counter()
        for seed in range(arguments.seeds):
            settings = dataclasses.replace(settings_of(name, arguments, seed), **fields)
            run = cardkge.new_run(settings, dataset, given.get(control))
            cardkge.train(run, dataset)
            found.append(figures(run.model, dataset))
            valid.append(figures(run.model, dataset, "valid")[-1])
        seconds = f"{(time.perf_counter() - began) / arguments.seeds:.0f}"
        line = row((CLASSES[name], control), found, seconds)
        if "L2" in control:
            decayed[float(np.mean(valid))] = line
        else:
            rows.append(line)
        print(*line, f"hits@10 on valid {np.mean(valid):.2f}", file=sys.stderr, flush=True)
    return [rows[0], decayed[max(decayed)], *rows[1:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="families")
    parser.add_argument("--dim", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", default="transe,rescal,hole")
    parser.add_argument("--controls", action="store_true", help="the regulariser's controls in place of PyKEEN")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.models.split(",")) - set(CLASSES))
    if unknown:
        parser.error(f"no model {unknown[0]}; there are {', '.join(CLASSES)}")
    for noisy in ("pykeen", "torch_max_mem"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    dataset = cardkge.load_dataset(arguments.data)
    for name in arguments.models.split(","):
        lines = (control_rows if arguments.controls else peer_rows)(name, arguments, dataset)
        print(tabulate(lines, ["", "", "MRR", "hits@1", "hits@10", "seconds"], "github"), flush=True)


if __name__ == "__main__":
    main()
