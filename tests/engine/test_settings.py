"""Settings are valid or refused with one sentence, and their file restores them exactly."""

import dataclasses
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashgatr.train import toml
from flashgatr.train.settings import (
    ConfigError,
    DataConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
    dumps,
    from_dict,
    load,
    loads,
    override,
    save,
    suggest,
    to_dict,
)

RICH = RunConfig(
    folder='runs/"quoted" \\ и ü\n',
    seed=7,
    model=ModelConfig(
        "transformer", {"num_blocks": 2, "rotary": [True, False], "sub": {"a b": {}}}
    ),
    data=DataConfig(options={"presets": [{"dt": 1e-3, "name": "euler"}, {}], "κ": "λ\t\x7f\u2028"}),
    train=TrainConfig(steps=10, lr=1e-5, lr_final=1e-5, clip=0.0, precision="bfloat16"),
)

text = st.text(max_size=12)
scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    text,
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
options = st.dictionaries(text, values, max_size=4)
names = st.from_regex(r"[a-z0-9][A-Za-z0-9_-]{0,8}", fullmatch=True)
folders = text.filter(lambda s: s.strip() and "\0" not in s)
rates = st.floats(1e-300, 1e300)


@st.composite
def trainings(draw):
    lr_final, lr = sorted(draw(st.tuples(rates, rates)))
    warmup, steps = sorted(draw(st.tuples(st.integers(0, 99), st.integers(1, 2**62))))
    fractions = st.floats(0, 1, exclude_max=True)
    return TrainConfig(
        steps=max(steps, 1),
        warmup=warmup,
        lr=lr,
        lr_final=lr_final,
        betas=draw(st.tuples(fractions, fractions)),
        ema=draw(fractions),
        clip=draw(st.floats(0, 1e300)),
        precision=draw(st.sampled_from(["float32", "tf32", "bfloat16"])),
        compile=draw(st.booleans()),
        strategy=draw(st.sampled_from(["auto", "ddp", "fsdp"])),
    )


configs = st.builds(
    RunConfig,
    experiment=names,
    folder=folders,
    seed=st.integers(0, 2**63 - 1),
    device=st.sampled_from(["auto", "cpu", "cuda", "cuda:3", "mps"]),
    model=st.builds(ModelConfig, name=names, options=options),
    data=st.builds(
        DataConfig, folder=folders, train_samples=st.integers(0, 10**9), options=options
    ),
    train=trainings(),
)


def _exact(values):
    """Text that shows types, numbers and signs of zero; the order of keys does not matter."""
    return json.dumps(values, sort_keys=True)


def _identical(a, b):
    return a == b and _exact(to_dict(a)) == _exact(to_dict(b))


@given(configs)
@settings(max_examples=80, deadline=None)
def test_writing_and_reading_is_the_identity(config):
    assert _identical(loads(dumps(config)), config)
    assert _identical(from_dict(json.loads(json.dumps(to_dict(config)))), config)


@given(options)
@settings(max_examples=150, deadline=None)
def test_options_survive_the_file_exactly(table):
    assert _exact(toml.parse(toml.dumps(table), "test")) == _exact(table)


@given(values)
@settings(max_examples=80, deadline=None)
def test_an_override_is_the_value_it_spells(value):
    spelled = toml.dumps({"x": [value]}).partition(" = ")[2]
    config = override(RunConfig(), [f"model.options.x={spelled}"])
    assert _exact(config.model.options["x"]) == _exact([value])


@given(text)
@settings(max_examples=100, deadline=None)
def test_any_option_key_can_be_overridden(key):
    assert override(RICH, [f"data.options.{toml.join([key])}=3"]).data.options[key] == 3


def test_files_are_read_back_exactly_and_replaced_whole(tmp_path):
    file = tmp_path / "new" / "run.toml"
    save(RICH, file)
    assert _identical(load(file), RICH)
    save(RunConfig(), str(file))
    assert load(str(file)) == RunConfig()
    assert [path.name for path in file.parent.iterdir()] == ["run.toml"]


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "run.toml"
    save(RICH, file)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(RunConfig(), file)
    assert load(file) == RICH
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_what_a_file_leaves_out_has_its_default():
    assert loads("") == RunConfig()
    assert loads("seed = 3\n[train]\nsteps = 7").train == TrainConfig(steps=7)


def test_a_byte_order_mark_and_windows_lines_are_fine(tmp_path):
    file = tmp_path / "run.toml"
    file.write_bytes(b"\xef\xbb\xbfseed = 3\r\n[train]\r\nsteps = 7\r\n")
    assert load(file) == RunConfig(seed=3, train=TrainConfig(steps=7))


def test_defaults_are_the_papers():
    t = RunConfig().train
    assert (t.steps, t.batch_size, t.lr, t.lr_final) == (50_000, 64, 3e-4, 3e-6)
    assert (t.decay_every, t.clip, t.betas) == (1000, 10.0, (0.9, 0.999))
    assert (t.warmup, t.weight_decay, t.eps, t.ema) == (0, 0.0, 1e-8, 0.0)


def test_defaults_of_what_is_kept_and_said_are_known():
    t = RunConfig().train
    assert (t.checkpoint_every, t.keep_checkpoints, t.validate_every) == (1000, 2, 1000)
    assert (t.log_every, t.max_bad_steps, t.restore_best) == (100, 20, True)
    assert (t.precision, t.strategy, t.compile, t.cuda_graph) == ("float32", "auto", False, False)
    assert (RunConfig().seed, RunConfig().device) == (0, "auto")


def test_configurations_do_not_share_or_change():
    given_options = {"a": [1, 2], "b": (True, False)}
    model = ModelConfig(options=given_options)
    given_options["a"].append(3)
    assert model.options == {"a": [1, 2], "b": [True, False]}
    to_dict(RunConfig(model=model))["model"]["options"]["a"].clear()
    assert model.options["a"] == [1, 2]
    before = dumps(RICH)
    override(RICH, ["model.options.sub.x=1", "train.steps=99"])
    assert dumps(RICH) == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.name = "mlp"


def test_overrides_are_set_in_order_and_checked_together():
    config = override(
        RICH,
        [
            "train.lr=1e-7",
            "train.lr_final=1e-9",
            "train.steps = 5",
            "train.steps=6",
            "model.name=mlp",
            "model.options={}",
            "model.options.hidden=64",
            "model.options.deep.er.x=[1, 2]",
            "data.options.\"a=b.c\"='x y'",
            "folder=runs/2026-11-20 a=b#c",
            "train.compile=true",
            "train.clip=1",
        ],
    )
    assert (config.train.lr, config.train.lr_final, config.train.steps) == (1e-7, 1e-9, 6)
    assert config.model == ModelConfig("mlp", {"hidden": 64, "deep": {"er": {"x": [1, 2]}}})
    assert config.data.options["a=b.c"] == "x y"
    assert config.folder == "runs/2026-11-20 a=b#c"
    assert config.train.compile is True
    assert type(config.train.clip) is float
    assert override(RICH, []) == RICH


def test_integers_become_numbers_where_numbers_are_expected():
    train = TrainConfig(lr=1, lr_final=1, betas=[0, 0.5])
    assert repr((train.lr, train.betas)) == "(1.0, (0.0, 0.5))"


OVERRIDES = {
    "train.step=5": "unknown key train.step; did you mean train.steps?",
    "steps=5": "unknown key steps; did you mean train.steps?",
    "trian.steps=5": "unknown key trian; did you mean train?",
    "train.name=mlp": "unknown key train.name; did you mean model.name?",
    "model.num_blocks=2": "unknown key model.num_blocks; known: model.name, model.options",
    "xyzzy=5": "known: experiment, folder, seed, device, model, data, train",
    'model."a\\nb"=5': 'unknown key model."a\\nb"',
    "train=5": "train is a table; set its keys one by one, as in train.steps=…",
    "model={name='mlp'}": "model is a table",
    "train.steps.x=5": "train.steps is 10, which has no keys of its own",
    "model.options.num_blocks.x=5": "model.options.num_blocks is 2, which",
    "model.options=5": "model.options must be a table, got 5",
    "train.steps=5e3": "train.steps must be an integer, got 5000.0; write it without",
    "train.steps=many": "train.steps must be an integer, got 'many'",
    "train.steps=true": "train.steps must be an integer, got true",
    "train.steps=0": "train.steps must be at least 1, got 0",
    "train.lr=fast": "train.lr must be a number, got 'fast'",
    "train.lr=0": "train.lr must be positive, got 0.0",
    "train.lr=nan": "train.lr must be a finite number, got nan",
    "train.lr=1e999": "train.lr must be a finite number, got inf",
    "train.lr=1e-9": "train.lr_final must be at most train.lr, which is 1e-09, got 1e-05",
    "train.warmup=11": "train.warmup must be at most train.steps, which is 10, got 11",
    "train.warmup=-1": "train.warmup must be at least 0, got -1",
    "train.ema=1": "train.ema must be at least 0 and less than 1, got 1.0",
    "train.betas=0.9": "train.betas must be a list of 2 numbers, got 0.9",
    "train.betas=[0.9]": "train.betas must be a list of 2 numbers, got [0.9]",
    "train.betas=[0.9, 1]": "less than 1, got [0.9, 1.0]",
    "train.betas=[0.9, 'x']": "train.betas must be a number, got 'x'",
    "train.compile=1": "train.compile must be true or false, got 1",
    "train.compile=True": "is Python, expected TOML; write true",
    "model.options.x=None": "leave out keys",
    "model.options.x=[nan]": "model.options.x must be a finite number",
    "model.options.x=2026-11-20": "got a value of type date",
    "model.options.x=0x1ffffffffffffffff": "64 bits, got a huge integer",
    "model.options.x=[1": "unclosed array",
    'model.options.x="a': "the value of 'model.options.x=\"a'",
    "model.options.x=": 'has no value; write "" for',
    'model.options."x=5': "expected KEY=VALUE",
    "train.precision=fp16": "must be one of 'float32', 'tf32', 'bfloat16', got 'fp16'",
    "train.strategy=3": "must be one of 'auto', 'ddp', 'fsdp', got 3",
    "model.name=5": "model.name must be a string, got 5; put it in quotes",
    "model.name=../x": "model.name must be a name of letters",
    "experiment=": "has no value",
    'folder=" "': "folder must be the path of a folder, got ' '",
    'data.folder="a\\u0000"': "data.folder must be the path of a folder",
    "data.train_samples=-1": "data.train_samples must be at least 0",
    "seed=-1": "seed must be at least 0",
    "device=gpu": "device must be auto, cpu, mps, cuda or cuda:NUMBER, got 'gpu'",
    "train.steps": "expected KEY=VALUE, such as train.steps=1000, got 'train.steps'",
    "=5": "the key of '=5'",
    "a\nb=5": "expected KEY=VALUE",
    "#a=5": "expected KEY=VALUE",
    " [a]#=5": "expected KEY=VALUE",
    "a#b=5": "the key of 'a#b=5'",
    "folder=\udcff": "folder must be Unicode text",
}


@pytest.mark.parametrize("assignment", OVERRIDES, ids=ascii)
def test_a_wrong_override_is_refused_in_one_sentence(assignment):
    with pytest.raises(ConfigError) as caught:
        override(RICH, [assignment])
    assert OVERRIDES[assignment] in str(caught.value)
    assert "\n" not in str(caught.value)


FILES = {
    "seed = ": "run.toml, line 1: invalid value",
    "seed = 1\n[train]\nsteps = = 3": "run.toml, line 3: invalid value",
    "seed = 1\nseed = 2\n": "run.toml, line 2: cannot overwrite a value",
    'folder = "open': "run.toml, line 1: unterminated string",
    "[train]\n\nbetas = [1,": "run.toml, line 3: ",
    "[trian]\nsteps = 3": "run.toml: unknown key trian; did you mean train?",
    "[train]\nstep = 3": "run.toml: unknown key train.step; did you mean train.steps?",
    "train = 3": "run.toml: train must be a table, got 3",
    "[[train]]\nsteps = 3": "run.toml: train must be a table, got a list of 1",
    "seed = 1979-05-27": "run.toml: seed must be an integer, got a value of type date",
    f"seed = {'1' * 9999}": "run.toml: not valid TOML: ",
    f"seed = {'[' * 9999}": "run.toml: lists or tables nest too deeply",
    f"[model.options{'.a' * 99}]": " nests deeper than 16 levels; make it flatter",
    f"{'a' * 999} = 1": "…a; known: experiment",
    f"# {'a' * 70_000}": "at most 65536 bytes",
    b"seed = 1\nfolder = '\xff'": "run.toml, line 2: not UTF-8 text",
}


@pytest.mark.parametrize("content", FILES, ids=lambda content: ascii(content[:20]))
def test_a_wrong_file_is_refused_in_one_sentence(content, tmp_path):
    file = tmp_path / "run.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert FILES[content] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(tmp_path))


def test_a_missing_file_is_a_configuration_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml.*: No such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match=r"cannot read .*: Is a directory"):
        load(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot read .*null byte"):
        load("a\0b")


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: TrainConfig(steps="5"), "train.steps must be an integer, got '5'"),
        (lambda: ModelConfig(name=None), "model.name must be a string, got None"),
        (lambda: ModelConfig(options={"a": None}), r"model.options.a must be .*; leave out"),
        (lambda: ModelConfig(options={1: 2}), "a key of model.options must be a string, got 1"),
        (lambda: ModelConfig(options={"a": {2}}), "got a value of type set"),
        (lambda: ModelConfig(options=[]), "model.options must be a table"),
        (lambda: DataConfig(folder=3), "data.folder must be a string, got 3"),
        (lambda: RunConfig(train={}), "train must be a TrainConfig, got a table"),
        (lambda: RunConfig(device="cpu", train=TrainConfig(cuda_graph=True)), "CUDA device"),
        (lambda: from_dict([]), r"a configuration must be a table, got \[\]"),
        (lambda: from_dict({"model": {"name": "a\nb"}}), r"got 'a\\nb'"),
        (lambda: override(RICH, [5]), "expected KEY=VALUE"),
        (lambda: dumps(RunConfig(data=DataConfig(options={"a": [0.5] * 20_000}))), "data file"),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(build, match):
    with pytest.raises(ConfigError, match=match) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_unknown_fields_are_refused():
    with pytest.raises(TypeError, match="step"):
        TrainConfig(step=3)


def test_self_containing_options_are_refused():
    endless: dict = {}
    endless["a"] = endless
    with pytest.raises(ConfigError, match="nests deeper"):
        ModelConfig(options=endless)


def test_suggestions_prefer_the_same_table():
    known = ["name", "model.name", "data.name", "data.names"]
    assert suggest("data.nam", known) == "did you mean data.name?"
    assert suggest("train.name", known) == "did you mean name?"
    assert suggest("data.q", known) == "known: data.name, data.names"
    assert suggest("other.q", known) == "known: name, model.name, data.name, data.names"


_PIECES = [
    b"\n", b"[", b"]", b"{", b"}", b"=", b'"', b"'", b'"""', b".", b",", b"#", b"\\", b"\\u",
    b"-", b"_", b"nan", b"inf", b"true", b"0x", b"1e999", b"99999999999999999999",
    b"1979-05-27T07:32:00Z", b"\0", b"\xff", b"\xc3", b"[train]", b"[[model]]", b"steps",
    b"options", b"\r", b"  ", b"+", b"e",
]  # fmt: skip


def _mutated(source, content):
    """The content after one to four small accidents."""
    for _ in range(source.randint(1, 4)):
        a, b = sorted(source.choices(range(len(content) + 1), k=2))
        near = min(a + source.randint(0, 12), len(content))
        kind = source.randrange(6)
        if kind == 0:
            content = content[:a] + bytes([source.randrange(256)]) + content[a + 1 :]
        elif kind == 1:
            content = content[:a] + content[near:]
        elif kind == 2:
            content = content[:a] + source.choice(_PIECES) + content[a:]
        elif kind == 3:
            content = content[:a] + source.choice(_PIECES) + content[near:]
        elif kind == 4:
            content = content[:b] + content[a:near] + content[b:]
        else:
            lines = content.split(b"\n")
            source.shuffle(lines)
            content = b"\n".join(lines)
    return content


def _refused(make, *arguments):
    """Whether the arguments are refused, with one sentence; accepted ones are valid."""
    try:
        config = make(*arguments)
    except ConfigError as error:
        message = str(error)
    else:
        assert _identical(loads(dumps(config)), config)
        return False
    assert len(message.splitlines()) == 1
    return True


def _check_files(number, file):
    source, originals = random.Random(0), [dumps(config).encode() for config in (RICH, RunConfig())]
    refused = 0
    for _ in range(number):
        file.write_bytes(_mutated(source, source.choice(originals)))
        refused += _refused(load, file)
    assert 0.3 < refused / number < 0.99  # some accidents are harmless, most are not


def _check_overrides(number):
    source = random.Random(1)
    originals = [b"train.steps=5", b'model.options.a={b=[1, "x"]}', b"model.name=mlp"]
    for _ in range(number):
        mutated = _mutated(source, source.choice(originals)).decode(errors="surrogateescape")
        _refused(override, RICH, [mutated])


def test_damaged_files_and_overrides_give_only_our_own_error(tmp_path):
    _check_files(300, tmp_path / "run.toml")
    _check_overrides(300)


@pytest.mark.slow
def test_ten_thousand_damaged_files_give_only_our_own_error(tmp_path):
    _check_files(10_000, tmp_path / "run.toml")
    _check_overrides(10_000)


def test_what_a_file_leaves_out_has_the_default_that_the_caller_gives(tmp_path):
    file, own = tmp_path / "run.toml", {"seed": 4, "train": {"steps": 7, "batch_size": 8}}
    asked = []

    def defaults(experiment):
        asked.append(experiment)
        return own

    file.write_text('experiment = "springs"\n[train]\nsteps = 5\n')
    config = load(file, defaults=defaults)
    assert (config.seed, config.train.steps, config.train.batch_size) == (4, 5, 8)
    assert load(file, "others", defaults=defaults).experiment == "others"
    file.write_text("train = 3\n")
    with pytest.raises(ConfigError, match="train must be a table"):
        load(file, defaults=defaults)
    assert asked == ["springs", "others", None]
    assert from_dict({}, own) == RunConfig(seed=4, train=TrainConfig(steps=7, batch_size=8))
