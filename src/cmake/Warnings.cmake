# Warnings that count as errors, for every target of ours.
add_library(ddp_warnings INTERFACE)
target_compile_options(ddp_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Werror
  "$<$<COMPILE_LANGUAGE:C>:-Wmissing-prototypes;-Wstrict-prototypes>")
