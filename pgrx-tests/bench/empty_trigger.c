/* The least that a row trigger can cost: called, and handing the row back. */
#include "postgres.h"

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
