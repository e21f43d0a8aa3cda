/* The least that a row trigger can cost: called, and handing the row back; and a clock that stands still while others run. */
#include "postgres.h"

#include <time.h>

#include "commands/trigger.h"
#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(empty_trigger);

Datum
empty_trigger(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	if (TRIGGER_FIRED_BY_UPDATE(data->tg_event))
		return PointerGetDatum(data->tg_newtuple);
	return PointerGetDatum(data->tg_trigtuple);
}

PG_FUNCTION_INFO_V1(cpu_time);

/* What this backend has spent, in microseconds. */
Datum
cpu_time(PG_FUNCTION_ARGS)
{
	struct timespec spent;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
	PG_RETURN_FLOAT8(spent.tv_sec * 1e6 + spent.tv_nsec / 1e3);
}
