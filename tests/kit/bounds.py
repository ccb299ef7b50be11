"""Sizes, counts and intervals of the product that tests make small, by names of our own.

The only place of the tests that knows where they are: when one moves, its row changes.
"""

from typing import Final

BOUNDS: Final = {
    "answer of a dashboard's change": "standfast.web.changes.LONGEST",
    "blocks of a copy": "standfast.store.copies.files.BLOCK",
    "blocks of the mesh page": "standfast.web.mesh.MOST_BLOCKS",
    "blocks of the quantizer": "standfast.packages.weights.quantized.BLOCK",
    "blocks of the ring": "standfast.files.ring.BLOCK",
    "bytes ahead of a writer": "standfast.files.writer._AHEAD",
    "bytes of a data state": "standfast.store.v3.companions.MAX_DATA_STATE",
    "bytes of a head": "standfast.store.schema.record.MAX_HEAD",
    "bytes of a run file": "standfast.store.schema.run_file.MAX_SIZE",
    "bytes of a safetensors header": "standfast.formats.safetensors.file.MAX_HEADER",
    "bytes of a tokenizer": "standfast.packages.documents.tokenizer.MAX_TEXT",
    "bytes of DCP metadata": "standfast.formats.dcp_metadata.MAX_METADATA",
    "bytes of JSON": "standfast.tensorfile.importers.json_files.MAX_JSON",
    "bytes of marks": "standfast.store.schema.marks.MAX_SIZE",
    "bytes of Orbax metadata": "standfast.orbax._MAX_JSON",
    "bytes of OXCK metadata": "standfast.formats.oxck.file.MAX_METADATA",
    "bytes of package JSON": "standfast.packages.documents.json_text.LARGEST",
    "bytes of sunc metadata": "standfast.formats.sunc.file.MAX_TEXT",
    "bytes of tenzor metadata": "standfast.formats.tenzor.file.MAX_METADATA",
    "bytes of YAML": "standfast.files.yaml_text.MAX_BYTES",
    "cgroup of this process": "standfast.files.staging.free_memory._MINE",
    "chunk of a comparison": "standfast.training.comparison._PIECE",
    "fields of the mesh page": "standfast.web.mesh._FIELDS",
    "file of free memory": "standfast.files.staging.free_memory._MEMINFO",
    "files of a parent": "standfast.store.save.known.MOST_FILES",
    "folder of cgroups": "standfast.files.staging.free_memory._GROUPS",
    "folder of the trash": "standfast.store.schema.names.TRASH",
    "grace of a mirror": "standfast.training.mirror.mirror._GRACE",
    "interval of a dashboard's look": "standfast.web.changes._PAUSE",
    "interval of manifests": "standfast.store.index.manifest._REFRESHED",
    "members of an archive": "standfast.packages.archive.MOST_MEMBERS",
    "memory left to others": "standfast.training.background.stagings._SLACK",
    "moment of a version": "standfast.store.remote.versions._MOMENT",
    "name of the index": "standfast.store.index.database.NAME",
    "network file systems": "standfast.files.mapping._NETWORK",
    "nodes of YAML": "standfast.files.yaml_text.MAX_NODES",
    "open items": "standfast.dcp.folder.items.MAX_OPEN",
    "part of a check": "standfast.tensorfile.verify._PART",
    "part of an upload": "standfast.store.remote.new_file._PART",
    "part of an uploaded package": "standfast.packages.remote.folder._PART",
    "part of its own file": "standfast.store.save.planning.TOGETHER",
    "patience of a mirror": "standfast.training.mirror.mirror._PATIENCE",
    "patience with a database": "standfast.store.index.database._PATIENCE",
    "patience with git": "standfast.packages.documents.manifest._PATIENCE",
    "patience with places": "standfast.store.query.locations.PATIENCE",
    "pinned at once": """
        standfast.files.staging.staging.PINNED_AT_ONCE
        standfast.files.staging.device_copies.PINNED_AT_ONCE
    """,
    "points held of a curve": "standfast.web.curves._HELD",
    "settled changes": "standfast.web.changes._SETTLED",
    "settled folder": "standfast.store.index.scanning._SETTLED",
    "shards of a package": "standfast.packages.weights.weights.MAX_SHARDS",
    "silence of a server": "standfast.store.remote.wait._SILENCE",
    "slack of a lease": "standfast.store.remote.locks._SLACK",
    "slow answer": "standfast.store.remote.client._SLOWLY",
    "small tensors": """
        standfast.files.staging.layout.SMALL
        standfast.files.staging.device_copies.SMALL
    """,
    "steps of a long run": "standfast.training.checkpointer._MANY",
    "tag of sealed JSON": "standfast.formats.seal._TAG",
    "temporary tensors": "standfast.store.load.placing._TEMPORARY",
    "threads that copy": "standfast.files.device_reader._COPYING",
    "threads that read blocks": "standfast.files.device_reader._MOST_THREADS",
    "time for a helper to start": "standfast.training.background.process._TIME_TO_START",
    "trash kept": "standfast.store.retention.removal.KEPT",
    "values of a whole heatmap": "standfast.web.heatmaps.WHOLE",
}
