"""Runs pgspot on a script; a line of JSON per finding.

pgspot 0.9.4 stumbles over SQL-standard function bodies (BEGIN ATOMIC, RETURN). Their names are bound when the function is
created, so such a body is read here under the search_path that the script has at that point; one that is a string is read
under the function's own, as pgspot does anyway.
"""

import json
import sys
from argparse import Namespace

from pglast import ast
from pglast.stream import RawStream
from pgspot import state, visitors

OPTIONS = Namespace(
    ignore=[], ignore_lang=[], plpgsql=True, proc_without_search_path=[], sql_fn=[], summary_only=False
)


class Counter(state.Counter):
    kind = ""

    def print_issue(self, code, context):
        self.found(code, state.codes[code]["title"], context)

    def unknown(self, message):
        self.found("unknown", "", message)

    def found(self, code, title, context):
        print(json.dumps({"code": code + self.kind, "title": title, "context": context}))


class Visitor(visitors.SQLVisitor):
    def visit_CreateFunctionStmt(self, ancestors, node):
        bound, node.sql_body = node.sql_body, None
        if bound is None:
            super().visit_CreateFunctionStmt(ancestors, node)
            return
        # As far as pgspot is concerned this one is empty.
        body = ast.DefElem(defname="as", arg=(ast.String(sval=""),))
        node.options = (*node.options, body)
        self.state.counter.kind = " of a bound body"
        super().visit_CreateFunctionStmt(ancestors, node)
        if isinstance(bound, ast.ReturnStmt):
            statements = ["SELECT " + RawStream()(bound.returnval)]
        else:
            statements = [RawStream()(statement) for statement in bound[0]]
        for statement in statements:
            visitors.visit_sql(self.state, statement)
        self.state.counter.kind = ""


visitors.SQLVisitor = Visitor
with open(sys.argv[1], encoding="utf8") as script:
    visitors.visit_sql(state.State(Counter(OPTIONS)), script.read(), toplevel=True)
