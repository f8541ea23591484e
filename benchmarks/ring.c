/* An all_reduce on a ring: world_size - 1 rounds of reduce-scatter, as many of all-gather.
 * The argument is the number of floats in each of the world_size chunks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  int rank, world_size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  const int n = world_size, elements = atoi(argv[1]);
  const int right = (rank + 1) % n, left = (rank + n - 1) % n;
  float *x = calloc((size_t)n * elements, sizeof *x);
  float *received = calloc(elements, sizeof *received);

  const double begin_s = MPI_Wtime();
  for (int step = 0; step < n - 1; step++) {
    const float *mine = x + (size_t)((rank - step + n) % n) * elements;
    float *sum = x + (size_t)((rank - step - 1 + n) % n) * elements;
    MPI_Sendrecv(mine, elements, MPI_FLOAT, right, 0, received, elements, MPI_FLOAT, left, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < elements; i++) sum[i] += received[i];
  }
  for (int step = 0; step < n - 1; step++) {
    const float *mine = x + (size_t)((rank - step + 1 + n) % n) * elements;
    float *next = x + (size_t)((rank - step + n) % n) * elements;
    MPI_Sendrecv(mine, elements, MPI_FLOAT, right, 0, next, elements, MPI_FLOAT, left, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  const double end_s = MPI_Wtime();

  double last_s;
  MPI_Reduce(&end_s, &last_s, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("time_s %.15f\n", last_s - begin_s);
  MPI_Finalize();
  return 0;
}
