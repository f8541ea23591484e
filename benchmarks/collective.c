/* One collective, whose algorithm SMPI's settings name; prints how long the last rank takes.
 * Arguments: kind, bytes of the whole vector (or of all parts together), root. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int is(const char *kind, const char *name) { return strcmp(kind, name) == 0; }

int main(int argc, char **argv) {
  int rank, n;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &n);
  const char *kind = argv[1];
  const int nbytes = atoi(argv[2]), root = atoi(argv[3]);
  const int whole = nbytes / 4, part = whole / n;
  float *x = calloc((size_t)whole + 1, sizeof *x);
  float *y = calloc((size_t)whole + 1, sizeof *y);
  int *parts = malloc(n * sizeof *parts);
  for (int r = 0; r < n; r++) parts[r] = part;
  const MPI_Comm all = MPI_COMM_WORLD;

  const double begin_s = MPI_Wtime();
  if (is(kind, "broadcast")) MPI_Bcast(x, whole, MPI_FLOAT, root, all);
  if (is(kind, "scatter")) MPI_Scatter(x, part, MPI_FLOAT, y, part, MPI_FLOAT, root, all);
  if (is(kind, "gather")) MPI_Gather(x, part, MPI_FLOAT, y, part, MPI_FLOAT, root, all);
  if (is(kind, "reduce")) MPI_Reduce(x, y, whole, MPI_FLOAT, MPI_SUM, root, all);
  if (is(kind, "all_reduce")) MPI_Allreduce(x, y, whole, MPI_FLOAT, MPI_SUM, all);
  if (is(kind, "all_gather")) MPI_Allgather(x, part, MPI_FLOAT, y, part, MPI_FLOAT, all);
  if (is(kind, "reduce_scatter")) MPI_Reduce_scatter(x, y, parts, MPI_FLOAT, MPI_SUM, all);
  if (is(kind, "all_to_all")) MPI_Alltoall(x, part, MPI_FLOAT, y, part, MPI_FLOAT, all);
  if (is(kind, "barrier")) MPI_Barrier(all);
  const double taken_s = MPI_Wtime() - begin_s;

  /* Each rank prints its own: a collective for it would run by the algorithm under test. */
  printf("rank %d begin_s %.15f taken_s %.15f\n", rank, begin_s, taken_s);
  MPI_Finalize();
  return 0;
}
