/* Scripts of four ranks, for MPICH and SMPI: prints when each step ended, since the common start.
 * Arguments: bytes of a message, seconds by which a late rank is late, then the scripts. In a
 * script, "s1|l0r0||" lets rank 0 send to rank 1, and rank 1 come late and receive from rank 0.
 * "i1" posts a send, and "w1" waits for it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void wait_until(double time_s) {
  const double left_s = time_s - MPI_Wtime();
  if (left_s <= 0) return;
  struct timespec left = {(time_t)left_s, (long)((left_s - (time_t)left_s) * 1e9)};
  nanosleep(&left, NULL);
}

int main(int argc, char **argv) {
  int rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const int nbytes = atoi(argv[1]);
  const double late_s = atof(argv[2]);
  char *data = calloc(nbytes, 40);
  char *text = calloc(argc, 4096), *end = text;
  MPI_Request request;
  for (int other = 1; other < 4; other++) /* open the connections, and the windows of TCP */
    MPI_Sendrecv(data, 20 * nbytes, MPI_BYTE, rank ^ other, 1, data + 20 * nbytes, 20 * nbytes,
                 MPI_BYTE, rank ^ other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);

  for (int number = 3; number < argc; number++) {
    const char *step = argv[number];
    for (int r = 0; r < rank; r++) step = strchr(step, '|') + 1;
    double begin_s = MPI_Wtime() + 1;
    MPI_Bcast(&begin_s, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    wait_until(begin_s);
    end += sprintf(end, "times %d %d", number - 3, rank);
    for (; *step && *step != '|'; step += 2) {
      const int peer = step[1] - '0';
      if (*step == 'l') wait_until(begin_s + late_s);
      if (*step == 's') MPI_Send(data, nbytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
      if (*step == 'i') MPI_Isend(data, nbytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &request);
      if (*step == 'w') MPI_Wait(&request, MPI_STATUS_IGNORE);
      if (*step == 'r')
        MPI_Recv(data, nbytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      end += sprintf(end, " %.9f", MPI_Wtime() - begin_s);
    }
    end += sprintf(end, "\n");
    wait_until(begin_s + 4 * late_s); /* the barrier's messages would share the links */
    MPI_Barrier(MPI_COMM_WORLD);
  }
  printf("%sdone %d\n", text, rank);
  fflush(stdout);
  MPI_Finalize(); /* over UCX it may never return: who reads this counts the lines "done" */
  return 0;
}
