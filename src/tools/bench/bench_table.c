/* bench_table.c - tables in aligned columns, which are Markdown's at the same time. */
#include <stdarg.h>
#include <string.h>

#include "ddp/memory.h"
#include "tools/bench/bench_util.h"

enum { CELL_BYTES = 96, MAX_COLUMNS = 24 };

struct ddpi_bench_table {
    int columns;
    char (*cells)[CELL_BYTES]; /* row by row, the heads first */
    int count, capacity;
    bool failed;
};

static void add_cell(ddpi_bench_table *table, const char *text)
{
    if (DDP_GROW(table->cells, table->capacity, table->count) != DDP_OK) {
        table->failed = true;
        return;
    }
    snprintf(table->cells[table->count++], CELL_BYTES, "%s", text);
}

ddp_status ddpi_bench_table_create(const char *const *heads, ddpi_bench_table **table_out)
{
    ddpi_bench_table *table;

    DDP_TRY(DDP_ALLOC(table, 1));
    for (; heads[table->columns] != NULL; table->columns++)
        add_cell(table, heads[table->columns]);
    DDP_ASSERT(table->columns > 0 && table->columns <= MAX_COLUMNS);
    *table_out = table;
    return DDP_OK;
}

void ddpi_bench_table_destroy(ddpi_bench_table *table)
{
    if (table == NULL)
        return;
    ddp_free(table->cells);
    ddp_free(table);
}

void ddpi_bench_table_add(ddpi_bench_table *table, const char *fmt, ...)
{
    char text[CELL_BYTES];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    add_cell(table, text);
}

static int width_of(const ddpi_bench_table *table, int column)
{
    int width = 1;

    for (int i = column; i < table->count; i += table->columns) {
        int length = (int)strlen(table->cells[i]);
        width = length > width ? length : width;
    }
    return width;
}

ddp_status ddpi_bench_table_print(const ddpi_bench_table *table, ddpi_bench_out *out)
{
    static const char dashes[CELL_BYTES] =
        "-----------------------------------------------------------------------------------------";
    int widths[MAX_COLUMNS];

    if (table->failed)
        return DDP_FAIL(DDP_ERR_NOMEM, "no memory for a table");
    DDP_ASSERT(table->count % table->columns == 0);
    for (int c = 0; c < table->columns; c++)
        widths[c] = width_of(table, c);
    for (int i = 0; i < table->count; i++) {
        int c = i % table->columns;
        ddpi_bench_say(out, "| %*s %s", widths[c], table->cells[i],
                       c + 1 == table->columns ? "|\n" : "");
        for (int d = 0; i == table->columns - 1 && d < table->columns; d++)
            ddpi_bench_say(out, "|%.*s:%s", widths[d] + 1, dashes,
                           d + 1 == table->columns ? "|\n" : "");
    }
    return DDP_OK;
}
