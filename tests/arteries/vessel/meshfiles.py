"""Mesh files as other programs write them, made by hand."""

import base64
import struct
import zlib

import numpy as np


def stl(position, face):
    corners = position[face].astype("<f4")
    rows = [struct.pack("<12fH", 0, 0, 0, *x.ravel(), 0) for x in corners]
    return b"made by hand".ljust(80) + struct.pack("<I", len(face)) + b"".join(rows)


def stl_text(position, face):
    text = ["solid vessel"]
    for corners in position[face].tolist():
        text += ["facet normal 0 0 0", "outer loop"]
        text += [f"vertex {x!r} {y!r} {z!r}" for x, y, z in corners]
        text += ["endloop", "endfacet"]
    return "\n".join([*text, "endsolid vessel\n"]).encode()


def obj(position, face):
    text = ["# by hand", "o vessel", *(f"v {x!r} {y!r} {z!r}" for x, y, z in position.tolist())]
    count = len(position)
    text += [f"f {a + 1}//1 {b + 1}/2/3 {c - count}" for a, b, c in face.tolist()]
    return "\n".join(text).encode()


def _ply_head(form, position, face):
    return (
        f"ply\nformat {form} 1.0\ncomment by hand\nelement vertex {len(position)}\n"
        "property double x\nproperty double y\nproperty double z\nproperty uchar red\n"
        f"element face {len(face)}\nproperty uchar flags\n"
        "property list uchar int vertex_indices\nend_header\n"
    ).encode()


def ply(position, face, order=">"):
    form = {">": "binary_big_endian", "<": "binary_little_endian"}[order]
    nodes = b"".join(struct.pack(f"{order}3dB", *x, 7) for x in position.tolist())
    faces = b"".join(struct.pack(f"{order}BB{len(x)}i", 1, len(x), *x) for x in face)
    return _ply_head(form, position, face) + nodes + faces


def ply_text(position, face):
    lines = [f"{x!r} {y!r} {z!r} 7" for x, y, z in position.tolist()]
    lines += [f"1 {len(x)} {' '.join(map(str, x))}" for x in face]
    return _ply_head("ascii", position, face) + "\n".join(lines).encode()


def vtk(
    position, cells, types=None, fields=(), form="ascii", header="UInt32", order="<", pack=None,
    apart=False,
):  # fmt: skip
    """A .vtp file, or with types a .vtu; `pack` compresses, `form` is ascii, binary, base64
    (appended) or raw; `apart` encodes the header of an array by itself.
    """
    appended = b""

    def encoded(x):
        size = {"UInt32": "I", "UInt64": "Q"}[header]
        if pack is None:
            head, body = struct.pack(order + size, len(x)), x
            if apart:
                return base64.b64encode(head) + base64.b64encode(body)
            return head + body if form == "raw" else base64.b64encode(head + body)
        blocks = [x[k : k + 1000] for k in range(0, len(x), 1000)]
        packed = [pack(block) for block in blocks]
        numbers = [len(blocks), 1000, len(x) % 1000, *map(len, packed)]
        head, body = struct.pack(f"{order}{len(numbers)}{size}", *numbers), b"".join(packed)
        return head + body if form == "raw" else base64.b64encode(head) + base64.b64encode(body)

    def array(name, x):
        nonlocal appended
        x = np.asarray(x)
        kind = dict(f="Float", i="Int", u="UInt")[x.dtype.kind] + str(8 * x.itemsize)
        about = f'<DataArray type="{kind}" Name="{name}" NumberOfComponents="{x[:1].size}"'
        if form == "ascii":
            return (
                f'{about} format="ascii">\n{" ".join(map(str, x.ravel().tolist()))}\n</DataArray>'
            )
        stored = encoded(x.astype(x.dtype.newbyteorder(order)).tobytes())
        if form == "binary":
            return f'{about} format="binary">\n {stored.decode()}\n</DataArray>'
        place, appended = len(appended), appended + stored
        return f'{about} format="appended" offset="{place}"/>'

    kind, place = ("PolyData", "Polys") if types is None else ("UnstructuredGrid", "Cells")
    compressor = {None: "", zlib.compress: "vtkZLibDataCompressor"}.get(
        pack, "vtkLZMADataCompressor"
    )
    nodes = [k for cell in cells for k in cell]
    text = [
        f'<?xml version="1.0"?>\n<VTKFile type="{kind}" version="1.0" header_type="{header}"',
        f' byte_order="{"LittleEndian" if order == "<" else "BigEndian"}"',
        f' compressor="{compressor}">' if pack else ">",
        f'<{kind}><Piece NumberOfPoints="{len(position)}" NumberOfPolys="{len(cells)}">',
        *["<PointData>", *(array(name, x) for name, x in dict(fields).items()), "</PointData>"],
        *["<Points>", array("Points", position), "</Points>", f"<{place}>"],
        array("connectivity", np.array(nodes, np.int64)),
        array("offsets", np.cumsum([len(cell) for cell in cells]).astype(np.int64)),
        *([] if types is None else [array("types", np.array(types, np.uint8))]),
        f"</{place}></Piece></{kind}>",
    ]
    raw = b""
    if appended:
        raw = f'<AppendedData encoding="{form}">\n_'.encode() + appended + b"\n</AppendedData>"
    return "".join(text).encode() + raw + b"</VTKFile>\n"
