//! Serializes the tree as canonical text in one pass.

use std::ops::Range;

use super::error::{JsonError, JsonErrorKind};
use super::pointer::Pointer;
use super::string;
use super::tree::{Node, NodeIndex, NodeKind, Tree, next, wide};

/// Replaces a value that was removed or not found. It cannot start a JSON value.
const PLACEHOLDER: u8 = b'*';

/// Number of bytes that are copied at once if the source is long enough.
const COPY_BLOCK: usize = 16;

/// Appends the canonical text of the document without its removed values.
pub(super) fn write_document(tree: &Tree<'_>, out: &mut Vec<u8>) {
    out.reserve(tree.body.len().saturating_add(COPY_BLOCK));
    write_element(tree, 0, out);
}

/// Appends the values at these pointers, each with its pointer.
pub(super) fn write_selected(
    tree: &Tree<'_>,
    pointers: &[Pointer],
    out: &mut Vec<u8>,
) -> Result<(), JsonError> {
    let mut found: Vec<_> = pointers.iter().map(|pointer| (pointer, tree.find(pointer))).collect();
    if found.iter().all(|(_, index)| index.is_none()) {
        return Err(JsonError::new(JsonErrorKind::NothingSelected, 0));
    }
    found.sort_unstable();
    found.dedup();
    out.extend_from_slice(b"only");
    let mut separator = b'{';
    for (pointer, index) in found {
        out.push(separator);
        string::write(pointer.as_str().as_bytes(), out);
        out.push(b':');
        match index {
            Some(index) => _ = write_element(tree, index, out),
            None => out.push(PLACEHOLDER),
        }
        separator = b',';
    }
    out.push(b'}');
    Ok(())
}

/// Writes a value and returns the next node. The depth of the document bounds the recursion.
fn write_element(tree: &Tree<'_>, index: NodeIndex, out: &mut Vec<u8>) -> NodeIndex {
    let Some(node) = tree.nodes.get(wide(index)) else { return next(index) };
    if node.is_removed {
        out.push(PLACEHOLDER);
        return tree.after(index);
    }
    match node.kind {
        NodeKind::Array => {
            write_array(tree, index, node, out);
            node.end
        }
        NodeKind::Object => {
            write_object(tree, node, out);
            node.end
        }
        NodeKind::Plain | NodeKind::Number | NodeKind::String | NodeKind::Unescaped => {
            write_scalar(tree, node, out);
            next(index)
        }
    }
}

fn write_array(tree: &Tree<'_>, index: NodeIndex, node: &Node, out: &mut Vec<u8>) {
    let mut child = next(index);
    let mut separator = b'[';
    while child < node.end {
        out.push(separator);
        separator = b',';
        child = write_element(tree, child, out);
    }
    if separator == b'[' {
        out.push(separator);
    }
    out.push(b']');
}

fn write_object(tree: &Tree<'_>, node: &Node, out: &mut Vec<u8>) {
    let mut separator = b'{';
    for index in tree.names(*node) {
        let Some([name, value]) = tree.member(*index) else { continue };
        if value.is_removed {
            continue;
        }
        out.push(separator);
        separator = b',';
        write_scalar(tree, name, out);
        out.push(b':');
        match value.kind {
            NodeKind::Array => write_array(tree, next(*index), value, out),
            NodeKind::Object => write_object(tree, value, out),
            NodeKind::Plain | NodeKind::Number | NodeKind::String | NodeKind::Unescaped => {
                write_scalar(tree, value, out);
            }
        }
    }
    if separator == b'{' {
        out.push(separator);
    }
    out.push(b'}');
}

/// Writes a member name or a scalar value.
#[inline(always)]
fn write_scalar(tree: &Tree<'_>, node: &Node, out: &mut Vec<u8>) {
    let (source, quotes): (&[u8], usize) = match node.kind {
        // A string without escapes is canonical in the body already.
        NodeKind::String => (tree.body, 1),
        NodeKind::Plain => (tree.body, 0),
        NodeKind::Number => (&tree.text, 0),
        NodeKind::Unescaped => return string::write(tree.bytes(*node), out),
        NodeKind::Array | NodeKind::Object => return,
    };
    copy(source, wide(node.start).wrapping_sub(quotes)..wide(node.end).wrapping_add(quotes), out);
}

/// Appends a range of the source. Most ranges are short: copying a fixed number of bytes and
/// truncating is much faster than copying the exact number. (An invalid range wraps to another
/// invalid range and appends nothing.)
#[inline(always)]
fn copy(source: &[u8], range: Range<usize>, out: &mut Vec<u8>) {
    let length = range.end.wrapping_sub(range.start);
    let rest = source.get(range.start..).unwrap_or_default();
    match rest.first_chunk::<COPY_BLOCK>() {
        Some(bytes) if length <= COPY_BLOCK => {
            let end = out.len().wrapping_add(length);
            out.extend_from_slice(bytes);
            out.truncate(end);
        }
        _ => out.extend_from_slice(rest.get(..length).unwrap_or_default()),
    }
}
