"""The rooms of the package: each imports only rooms below it, and only their public modules."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from standfast.formats import FORMATS
from tests.kit.source_code import SOURCE, imports, modules, own_imports, paths, room

FRAMEWORKS: Final = ("torch", "jax", "dcp", "lightning", "transformers", "orbax")
"""None of them imports another."""

LOW: Final = "errors tensors schedule policies conventions files parallel formats tensorfile"
HIGH: Final = "oxck tenzor amr packages experiments display cli web"
ROOMS: Final = (*LOW.split(), "identity", "store", "training", *FRAMEWORKS, *HIGH.split())
"""From the bottom up; the package itself, which exports the public names, is on top."""

PUBLIC: Final = {
    "tensors": "adapter cast devices dtypes frameworks randomness shards sources",
    "parallel": "agreement assignment communicator failures program select",
    "files": """
        atomic blocks compression deflate device_reader digests disk folder_swap.open_folder
        folder_swap.swap forms input.cache input.file input.memory input.ranges input.stream
        layout libc lines mapping paths read_back reader ring staging.device_copies
        staging.free_memory staging.layout staging.staging threads writer yaml_text
    """,
    "formats": """
        dcp_metadata limits metadata oxck.file reader safetensors.file
        safetensors.growing_file seal sunc.file sunc.header tenzor.file torch.file
        torch.tree_file torch.tree_writer torch.values trees zip.archive
    """,
    "tensorfile": """
        convert diff importers importers.contents importers.values importers.weight_map
        importers.weightslab load open save verify
    """,
    "identity": "identity names reduction",
    "store": """
        backends.address backends.backend backends.local backends.new_file checkpoint
        copies.copy copies.export copies.files copies.imports index.index load.box_reading
        load.filling load.loading load.making load.needed load.ranks_choosing load.reading
        maintenance.doctor maintenance.logical maintenance.verify query.changes query.filters
        query.lineage query.listing query.locations query.mirrors query.view remote.client
        remote.connection remote.wait retention.budgets retention.collection retention.history
        retention.pins retention.restoring retention.retaining retention.space retention.trash
        retention.trash_entry retention.usage retention.verdicts run save.attempts save.changing
        save.held save.joining save.planning save.ranks save.saving save.shares save.sharing
        save.taken save.writing schema.boxes schema.decoder schema.marks schema.metrics schema.names
        schema.record schema.run_file store tree.aliases tree.nodes tree.per_rank tree.refusals
        tree.tree v3.companions v3.foreign
    """,
    "training": """
        background.background beginning best checkpointer loaders metrics parts
        proof.comparison proof.proof report saves signals state tenure
    """,
    "torch": "loader",
    "tenzor": "folder program",
    "amr": """
        inspect.description inspect.differences inspect.items inspect.logical inspect.snapshots
        inspect.trees mesh.arena mesh.frontends snapshot.snapshot
    """,
    "packages": """
        archive documents.json_text documents.manifest documents.names listing remote.places
        store verify writer
    """,
    "display": "changes curves output trees",
    "cli": """
        commands.diff.runs commands.du commands.gc commands.log.lineage commands.ls
        commands.show.checkpoint commands.show.file commands.show.package commands.show.tree
    """,
    "web": "app",
}
"""The modules of each room that other rooms import, besides the room's package itself.

A room's interface: make it smaller. A new entry needs a reason; an entry that is no longer
imported from outside is deleted here.
"""

ALLOWED: Final = {
    ("cli.commands.ui", "web"),  # the command that starts the dashboard
    ("cli.app", "standfast"),  # prints the version
    ("web.site", "standfast"),
}
"""Imports from a room above: a module, and the room."""


def _crossings() -> Iterator[tuple[str, str]]:
    """Each import from one room into another: the importing module, the imported one."""
    for name, path in modules().items():
        for imported in own_imports(path):
            if name != "standfast" and room(imported) != room(name):
                yield name.removeprefix("standfast."), imported


def test_every_module_is_in_a_room():
    assert {room(name) for name in modules()} == {*ROOMS, "standfast"}


def test_each_room_imports_only_rooms_below_it():
    order = [*ROOMS, "standfast"]
    for module, imported in _crossings():
        own, other = room(f"standfast.{module}"), room(imported)
        if (module, other) not in ALLOWED:
            assert order.index(other) < order.index(own), f"{module} imports {imported}"
        assert not {own, other} <= {*FRAMEWORKS}, f"{module} imports {imported}"


def test_the_public_modules_of_each_room_are_these():
    found: dict[str, set[str]] = {}
    for name, path in modules().items():
        for imported in own_imports(path):
            if room(imported) != room(name) and imported.count(".") > 1:
                found.setdefault(room(imported), set()).add(imported.split(".", 2)[2])
    assert {place: sorted(names) for place, names in found.items()} == {
        place: sorted(names.split()) for place, names in PUBLIC.items()
    }


def test_formats_do_not_import_each_other():
    shared = {"zip"}
    folders = {path.name for path in (SOURCE / "formats").iterdir() if path.is_dir()}
    formats = folders - shared - {"__pycache__"}
    assert formats == {format.NAME for format in FORMATS}
    for name in formats:
        for path in (SOURCE / "formats" / name).glob("*.py"):
            others = {each.split(".")[2] for each in own_imports(path) if each.count(".") > 1}
            assert not others & (formats - {name}), path


def test_the_core_imports_no_framework():
    models = {SOURCE / "tenzor" / "lenet.py", SOURCE / "packages" / "model" / "gpt.py"}
    for path in paths():
        if path.relative_to(SOURCE).parts[0] not in FRAMEWORKS and path not in models:
            found = {name.split(".")[0] for name in imports(path)}
            assert not {"jax", "safetensors"} & found, path
            assert "torch" not in imports(path), path


def test_only_the_files_room_changes_disks():
    for path in paths():
        if path.relative_to(SOURCE).parts[0] != "files":
            text = path.read_text()
            for call in ("os.rename", "os.replace", "os.unlink", "os.write", "os.fsync"):
                assert call not in text, f"{path} calls {call}"


def test_no_folder_has_more_than_twenty_modules():
    for top in (SOURCE, Path(__file__).parent):
        for folder in [top, *(each for each in top.rglob("*") if each.is_dir())]:
            assert len(list(folder.glob("*.py"))) <= 20, folder
