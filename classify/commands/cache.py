"""Show or clear the cache of tables."""

from __future__ import annotations

from collections.abc import Sequence

from classify.config.parser import Parser


def make_parser(program: str) -> Parser:
    parser = Parser(prog=program, description="Show or clear the cache of tables.")
    parser.add_argument("--clear", action="store_true", help="delete all entries")
    return parser


def run(arguments: Sequence[str], program: str) -> int:
    options = make_parser(program).parse(arguments)
    from classify.tables import cache

    if options.clear:
        cache.clear_cache()
    count, size = cache.cached_bytes()
    most = cache.MOST_BYTES >> 20
    print(f"{cache.cache_folder()}: {count} entries, {size / (1 << 20):.1f} of up to {most} MiB (--clear deletes them)")
    reason = cache.why_not_trusted()
    if reason is not None:
        print(f"note: the cache is not used: {reason}")
    return 0
