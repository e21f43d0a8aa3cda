SET CONSTRAINTS {schema}.sandbox_checkpoint_refs_guard IMMEDIATE
