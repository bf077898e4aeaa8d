"""Bad input, case by case: exit code 2, one line that names the cure, no traceback, nothing written or changed."""

import hashlib
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from excite.cli import main

# A command line, and what its error must say. RUN is a run folder with a trained and attacked baseline.
COMMANDS = """
nonsense | No such command 'nonsense'
rnu | No such command 'rnu'
--nonsense | No such option
run --nonsense | No such option
run a b | unexpected extra argument
run mnits-sample | did you mean "mnist-sample"
run zzzzzz | There is no experiment "zzzzzz". Known:
run nowhere.toml | There is no file nowhere.toml
run broken.toml | broken.toml is not valid TOML
run empty.toml | empty.toml: The experiment does not fit
run binary.toml | binary.toml cannot be read as text
run folder.toml | There is no file folder.toml
run unknown-key.toml | unknown-key.toml: There is no key of an experiment "training.epoch"; did you mean
run RUN --set training.epochs=3 | need a name or a file, and a new --out
run RUN --seeds 2 | RUN
run tiny.toml --arms "" | There is no arm ""
run tiny.toml --arms , | There is no arm ""
run tiny.toml --arms poe,,baseline | There is no arm ""
run tiny.toml --arms best | Known: baseline,
run tiny.toml --arms basline | did you mean "baseline"
run tiny.toml --arms grid:0 | arm "grid:0"
run tiny.toml --arms grid:1 | try at least two: grid:2
run tiny.toml --arms grid:-3 | arm "grid:-3"
run tiny.toml --arms grid | grid:5
run tiny.toml --seeds 0 | is not in the range x>=1
run tiny.toml --seeds -1 | is not in the range x>=1
run tiny.toml --seeds two | is not a valid integer
run tiny.toml --seeds 1.5 | is not a valid integer
run tiny.toml --device gpu | cpu
run tiny.toml --device cuda:99 | cpu
run tiny.toml --device "" | cpu
run tiny.toml --device mps | cpu
run tiny.toml --out "" | the name is empty
run tiny.toml --out tiny.toml | tiny.toml' is a file
run tiny.toml --out tiny.toml/run | is a file, so nothing can be written below it
run tiny.toml --out {long} | name another
run tiny.toml --out /proc/run | /proc cannot be written
run tiny.toml --out /dev/null/run | is a file, so nothing can be written below it
report RUN --out /proc/page.html | /proc cannot be written
run tiny.toml --out RUN --set training.epochs=9 | Name a new folder with --out
run tiny.toml --out RUN --set model.name=nothing | There is no model "nothing"
run -q -v | -q and -v contradict each other
run tiny.toml --set | requires an argument
run tiny.toml --set training | write key=value
run tiny.toml --set =3 | write key=value
run tiny.toml --set "" | write key=value
run tiny.toml --set training.epoch=1 | did you mean "training.epochs"
run tiny.toml --set epochs=1 | Known:
run tiny.toml --set training.epochs.x=1 | is a value, not a table
run tiny.toml --set training.epochs=0 | >= 1
run tiny.toml --set training.epochs=-1 | >= 1
run tiny.toml --set training.epochs=1.5 | training.epochs
run tiny.toml --set training.epochs=many | training.epochs
run tiny.toml --set training.epochs=nan | training.epochs
run tiny.toml --set training.epochs=true | training.epochs
run tiny.toml --set training.epochs=[1] | training.epochs
run tiny.toml --set training.batch_size=0 | >= 1
run tiny.toml --set training.steps=0 | >= 1
run tiny.toml --set training.momentum=1.5 | momentum
run tiny.toml --set training.momentum=1 | momentum
run tiny.toml --set training.momentum=-0.1 | momentum
run tiny.toml --set training.momentum=nan | momentum
run tiny.toml --set training.momentum=inf | momentum
run tiny.toml --set training.nesterov=true | momentum
run tiny.toml --set training.nesterov=yes | training.nesterov
run tiny.toml --set training.weight_decay=-1 | weight_decay
run tiny.toml --set training.weight_decay=nan | weight_decay
run tiny.toml --set training.weight_decay=inf | weight_decay
run tiny.toml --set training.schedule=step | training.schedule
run tiny.toml --set training.schedule.kind=stair | schedule
run tiny.toml --set training.schedule.kind=3 | schedule
run tiny.toml --set training.schedule.rate=0 | rate
run tiny.toml --set training.schedule.rate=-0.1 | rate
run tiny.toml --set training.schedule.rate=nan | rate
run tiny.toml --set training.schedule.rate=inf | rate
run tiny.toml --set training.schedule.rate=fast | rate
run tiny.toml --set training.schedule.rates=1 | did you mean "rate"
run tiny.toml --set training.schedule.milestones=3 | milestones
run tiny.toml --set training.schedule.milestones=[-1] | Milestones (-1,) must be
run tiny.toml --set training.schedule.milestones=[5,3] | rising order
run tiny.toml --set training.schedule.factor=-1 | factor
run tiny.toml --set training.objective=standart | did you mean "standard"
run tiny.toml --set training.objective=nothing | There is no objective "nothing". Known:
run tiny.toml --set training.objective=3 | training.objective
run tiny.toml --set training.objective.kind=trades --set training.objective.betas=1 | did you mean "beta"
run tiny.toml --set training.objective.kind=trades --set training.objective.eps=2 | eps
run tiny.toml --set training.objective.kind=trades --set training.objective.eps=nan | eps
run tiny.toml --set training.objective.kind=rst | rst
run tiny.toml --set seed=-1 | seed
run tiny.toml --set seed=0.5 | seed
run tiny.toml --set seed=first | seed
run tiny.toml --set data.name=imagenet | There is no data set "imagenet"
run tiny.toml --set data.name=mnist_sample | did you mean "mnist-sample"
run tiny.toml --set data.name="" | There is no data set ""
run tiny.toml --set data.name=3 | data.name
run tiny.toml --set data.name=nowhere.npz | nowhere.npz
run tiny.toml --set data.train_examples=0 | >= 1
run tiny.toml --set data.train_examples=999999 | 999999
run tiny.toml --set data.test_examples=0 | >= 1
run tiny.toml --set data.test_examples=999999 | 999999
run tiny.toml --set data.augment=mirror | augment
run tiny.toml --set data.unlabelled=nothing | nothing
run tiny.toml --set data.epoch_samples=0 | >= 1
run tiny.toml --set model.name=lenet | did you mean "lenet5"
run tiny.toml --set model.name=vit | There is no model "vit". Known:
run tiny.toml --set model.name="" | There is no model ""
run tiny.toml --set model.normalize=maybe | model.normalize
run tiny.toml --set model.options.activations=tanh | did you mean "activation"
run tiny.toml --set model.options.activation=sin | relu
run tiny.toml --set model.options.activation=3 | activation
run tiny.toml --set model.options=3 | model.options
run tiny.toml --set model.name=resnet21 | resnet20
run tiny.toml --set lipschitz.method=guess | edge
run tiny.toml --set lipschitz.method=edges | edge
run tiny.toml --set lipschitz.method=3 | needs a method: one of edge
run tiny.toml --set lipschitz.budget=0 | budget
run tiny.toml --set lipschitz.budget=-1 | budget
run tiny.toml --set lipschitz.runs=0 | Known: budget, steps
run tiny.toml --set lipschitz.steps=0 | steps
run tiny.toml --set lipschitz.seeds=0 | Known: budget, steps
run tiny.toml --set lipschitz.ratios=2 | There is no option of the estimator edge "ratios"
run tiny.toml --set record.slopes_per_epoch=-1 | >= 0
run tiny.toml --set record.curvature_every=-1 | >= 0
run tiny.toml --set record.probe_examples=0 | >= 1
run tiny.toml --set record.attacked_examples=-1 | >= 0
run tiny.toml --set attacks.PGD.kind=pdg | did you mean "pgd"
run tiny.toml --set attacks.PGD.kind=pgd | eps
run tiny.toml --set attacks.PGD=pgd | attacks
run tiny.toml --set 'attacks.new={kind="pgd",eps=2,step=1}' | eps
run tiny.toml --set 'attacks.new={kind="pgd",eps=8,step=1}' | 8/255
run tiny.toml --set 'attacks.new={kind="pgd",eps=-1,step=1}' | eps
run tiny.toml --set 'attacks.new={kind="pgd",eps=nan,step=1}' | eps
run tiny.toml --set 'attacks.new={kind="pgd",eps=0.1,step=nan}' | step
run tiny.toml --set 'attacks.new={kind="pgd",eps=0.1,step=0.1,restarts=0}' | restarts
run tiny.toml --set 'attacks.new={kind="pgd",eps=0.1,step=0.1,norm="l1"}' | linf
run tiny.toml --set 'attacks.new={kind="pgd",eps=0.1,step=0.1,loss="hinge"}' | cross_entropy
run tiny.toml --set 'attacks.new={kind="pgd",eps="big",step=0.1}' | eps
run tiny.toml --set 'attacks.new={kind="square",eps=0.1,querys=3}' | did you mean "queries"
run tiny.toml --set 'attacks.new={eps=0.1,step=0.1}' | kind
run tiny.toml --set 'attacks.new={kind="autoattack"}' | eps
run tiny.toml --set 'arms=["best"]' | arm "best"
run tiny.toml --set 'arms="poe"' | arms
run tiny.toml --set name=3 | name
sweep tiny.toml --set sweep.training.batch_sizes=[1] | did you mean "training.batch_size"
run tiny.toml --set teacher.threshold=2 | <= 1
run tiny.toml --set teacher.threshold=-1 | >= 0
sweep | Missing argument
sweep tiny.toml --engine spark | 'local', 'ray'
sweep tiny.toml --workers 0 | x>=1
sweep tiny.toml --workers many | is not a valid integer
sweep tiny.toml --address auto | add --engine ray
sweep tiny.toml --seeds 0 | x>=1
sweep tiny.toml --arms "" | There is no arm ""
sweep tiny.toml --out tiny.toml | is a file
sweep tiny.toml --out RUN | RUN
sweep nothing | There is no experiment "nothing"
sweep tiny.toml --set sweep.training.batch_size=[] | has no values
sweep tiny.toml --set sweep.training.batch_size=3 | sweep
sweep tiny.toml --set sweep.nothing=[1] | nothing
train tiny.toml --arm best | baseline
train tiny.toml --arm "" | baseline
train tiny.toml --arm baseline,poe | baseline
train nothing | There is no experiment "nothing"
train tiny.toml --out tiny.toml/run | is a file
train tiny.toml --device tpu | cpu
estimate | Missing argument
estimate nowhere | does not exist
estimate tiny.toml | is a file
estimate . | is not a run folder
estimate RUN | `excite estimate RUN --train` makes one
estimate RUN --compare | `excite estimate RUN --train` makes one
estimate RUN --device cpu | --device would be ignored
certify | Missing argument
certify nowhere | does not exist
certify . | is not a run folder
certify RUN --arm poe | `excite train RUN --arm poe` trains it
certify RUN --arm grid:3 | `excite train RUN --arm grid-3` trains it
certify RUN --arm best | There is no arm "best"
certify RUN | `excite estimate RUN --train` makes one
batch-size | Missing argument
batch-size tiny.toml | Missing argument
batch-size tiny.toml --try | Missing argument
batch-size tiny.toml --try 0 | x>=1
batch-size tiny.toml --try big | is not a valid integer
batch-size nothing --try 32 | There is no experiment "nothing"
batch-size tiny.toml --try 32 --threshold 2 | is not in the range from 0 to 1
batch-size tiny.toml --try 32 --threshold -1 | is not in the range from 0 to 1
batch-size tiny.toml --try 32 --threshold nan | is not a number
batch-size tiny.toml --try 32 --threshold high | is not a number
batch-size tiny.toml --try 32 --out tiny.toml | is a file
attack | Name a run folder
attack nowhere | does not exist
attack . | is not a run folder
attack tiny.toml | Name a run folder
attack RUN --eps 0.9 --examples 3 | --eps and --examples would be ignored
attack RUN --arm poe | `excite train RUN --arm poe` trains it
attack RUN --arm best | There is no arm "best"
attack RUN --with pdg | did you mean "pgd"
attack RUN --with zzz | There is no attack "zzz". Known:
attack RUN --with "" | There is no attack ""
attack RUN --with pgd | eps
attack RUN --with pgd --eps 2 | eps
attack RUN --with pgd --eps 8 | 8/255
attack RUN --with pgd --eps nan | is not a number
attack RUN --with pgd --eps inf | is not a number
attack RUN --with pgd --eps -0.1 | eps
attack RUN --with pgd --eps 1/0 | is not a number
attack RUN --with pgd --eps 8/255/2 | is not a number
attack RUN --with pgd --eps big | is not a number
attack RUN --with pgd --eps 1e999 | is not a number
attack RUN --with pgd --eps 0.1 --step -1 | step
attack RUN --with pgd --eps 0.1 --steps 0 | x>=1
attack RUN --with pgd --eps 0.1 --restarts 0 | x>=1
attack RUN --with pgd --eps 0.1 --norm l1 | 'linf', 'l2'
attack RUN --with pgd --eps 0.1 --examples 0 | x>=1
attack RUN --with pgd --eps 0.1 --examples 999999 | cannot be drawn from 40
attack RUN --with pgd --eps 0.1 --subset-seed 1 | add --examples
attack RUN --with pgd --eps 0.1 --examples 9 --subset-seed -1 | x>=0
attack RUN --with square --eps 0.1 --steps 3 | None of square takes steps
attack RUN --with pgd --weights w.pt | add --model
attack RUN --with pgd --data mnist | add --model
attack --with pgd --eps 0.1 --model lenet5 | --weights FILE
attack --with pgd --eps 0.1 --model lenet5 --weights nowhere.pt --data mnist-sample | There is no file nowhere.pt
attack --with pgd --eps 0.1 --model lenet5 --weights w.pt --data nothing | There is no data set "nothing"
attack --with pgd --eps 0.1 --model lenet --weights w.pt --data mnist-sample | did you mean "lenet5"
attack --with pgd --eps 0.1 --model lenet5 --weights w.pt --data mnist-sample | does not fit lenet5
attack --with pgd --eps 0.1 --model nowhere:net --weights w.pt --data mnist-sample | cannot be imported
attack --with pgd --eps 0.1 --model theirs:nothing --weights w.pt --data mnist-sample | cannot be imported
attack --with pgd --eps 0.1 --model theirs: --weights w.pt --data mnist-sample | cannot be imported
attack --with pgd --eps 0.1 --model :net --weights w.pt --data mnist-sample | cannot be imported
attack --with pgd --eps 0.1 --model theirs:number --weights w.pt --data mnist-sample | name a function
attack --with pgd --eps 0.1 --model theirs:sized --weights w.pt --data mnist-sample | name a function without arguments
attack --with pgd --eps 0.1 --model theirs:broken --weights w.pt --data mnist-sample | theirs:broken
attack --with pgd --eps 0.1 --model theirs:digits --arm poe --weights w.pt | --arm would be ignored
attack w.pt --with pgd --eps 0.1 --model theirs:digits --weights w.pt | name one file
attack --model theirs:digits --weights w.pt | add --with
pseudo-label | Missing
pseudo-label RUN | Missing option '--data'
pseudo-label RUN --data mnist-sample | Missing option '--out'
pseudo-label RUN --data nothing --out p.npz | nothing
pseudo-label RUN --data mnist-sample --out p.npz | mnist-sample
pseudo-label RUN --data images.npz --out p.npz --threshold 2 | is not in the range from 0 to 1
pseudo-label RUN --data images.npz --out p.npz --threshold nan | is not a number
pseudo-label RUN --data images.npz --out RUN | is a directory
pseudo-label RUN --data images.npz --out tiny.toml/p.npz | is a file
pseudo-label . --data images.npz --out p.npz | is not a run folder
pseudo-label RUN --arm best --data images.npz --out p.npz | There is no arm "best"
report | Missing argument
report nowhere | does not exist
report tiny.toml | is a file
report empty | There is no run in
report RUN nowhere | does not exist
report RUN --format xml | 'latex'
report RUN --format csv --open | --open would be ignored
report RUN --format csv --out p.html | --out would be ignored
report RUN --format csv --json | --json would be ignored
report RUN --out . | is a directory
report RUN --out tiny.toml/p.html | is a file
figure | Missing argument
figure figure-2 | Missing argument
figure figure-9 RUN | There is no figure "figure-9"
figure nothing RUN | Known: figure-1
figure figure-2 nowhere | does not exist
figure figure-2 empty | There is no run in
figure figure-4 RUN | figure-4
figure figure-1 RUN --out tiny.toml | is a file
export | Missing argument
export nowhere --to robustbench | does not exist
export RUN | Missing option '--to'
export RUN --to kaggle | 'robustbench'
export RUN --to robustbench --arm best | There is no arm "best"
export RUN --to robustbench --arm poe | poe
export RUN --to robustbench --out tiny.toml | is a file
export RUN --to tensorboard --arm poe | --arm would be ignored
list --device gpu | cpu
list extra | unexpected extra argument
verify | Missing argument
verify nowhere | does not exist
verify empty | run
data | list
data nonsense | No such command
data fetch | Missing argument
data fetch cifar | cifar10
data fetch "" | There is no data set ""
data verify nothing | There is no data set "nothing"
completion | Missing argument
completion powershell | 'bash', 'zsh', 'fish'
"""
CASES = [tuple(part.strip() for part in line.rsplit("|", 1)) for line in COMMANDS.strip().splitlines()]
THEIRS = """
from torch import nn

number = 3

def digits():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

def sized(width):
    return nn.Linear(width, 10)

def broken():
    raise RuntimeError("no weights for you")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_experiment: str) -> Path:
    """A folder with a run in it, and files that are not what they seem."""
    folder = tmp_path_factory.mktemp("bad-input")
    (folder / "tiny.toml").write_text(tiny_experiment, encoding="utf-8")
    (folder / "unknown-key.toml").write_text(tiny_experiment.replace("epochs", "epoch"), encoding="utf-8")
    (folder / "broken.toml").write_text("name = ", encoding="utf-8")
    (folder / "empty.toml").touch()
    (folder / "binary.toml").write_bytes(b"\x80\x81\xff\x00")
    (folder / "folder.toml").mkdir()
    (folder / "empty").mkdir()
    (folder / "theirs.py").write_text(THEIRS, encoding="utf-8")
    torch.save({"0.weight": torch.zeros(2)}, folder / "w.pt")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with pytest.raises(SystemExit) as ended:
            main(["run", "tiny.toml", "--arms", "baseline", "--out", "RUN", "-q"])
    assert not ended.value.code
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Every file but locks and caches, with the hash of what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in folder.rglob("*")
        if not path.name.endswith(".lock") and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize(("command", "fragment"), CASES, ids=[command for command, _ in CASES])
def test_a_bad_command_line_is_refused_with_the_cure(
    command: str, fragment: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("EXCITE_DATA", str(place / "data"))
    shutil.rmtree(place / "runs", ignore_errors=True)  # of a case that was not refused: it must not hide the next
    before = contents(place)
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(shlex.split(command.replace("{long}", "x" * 300)))
    printed = capsys.readouterr()
    assert stopped.value.code == 2, printed.err
    assert fragment in printed.err.replace("\n", " ")
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert contents(place) == before


def test_the_table_is_long_enough() -> None:
    assert len(CASES) == len(set(CASES))
    assert len(CASES) >= 250
